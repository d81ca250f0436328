// The copier into CUDA memory on the fake: what arrives, by which copies, and what it refuses.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/transfer_plan.h"
#include "kernels/cuda/cuda_copier.h"
#include "kernels/cuda/cuda_memory.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice {
namespace {

using cuda::CudaCopier;
using cuda_fake::CountersOfFake;

constexpr uint64_t kSlabBytes = 4 << 20;
constexpr uint32_t kRows = 300;
constexpr uint64_t kRowBytes = 1000;

// Random bytes in a memory file, as weightd's segments are.
std::shared_ptr<const SharedMemory> RandomSegment(uint64_t bytes) {
  absl::StatusOr<SharedMemory> memory = CreateSharedMemory("segment", bytes, PeerAccess::kReadOnly);
  EXPECT_TRUE(memory.ok()) << memory.status();
  std::mt19937_64 random(bytes);
  for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(memory->map.data() + i, &word, 8);
  }
  return std::make_shared<const SharedMemory>(*std::move(memory));
}

class CudaCopierTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { cuda_fake::ResetFake({.seed = GetParam()}); }
  void TearDown() override {
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      ADD_FAILURE() << report.text;
    }
  }

  SharedBuffer Exported(cuda::Memory* memory, uint64_t bytes = kSlabBytes) {
    absl::StatusOr<SharedBuffer> shared = memory->AllocateShared(bytes, nullptr);
    EXPECT_TRUE(shared.ok()) << shared.status();
    cudaDeviceSynchronize();
    return *shared;
  }
  static SlabHandle HandleOf(const SharedBuffer& shared) {
    return {shared.kind, shared.device, shared.bytes};
  }

  // Copies all chunks of the plan and waits for each to be named once.
  static void CopyAll(CudaCopier* copier, const TransferPlan& plan, Slab* slab) {
    std::set<uint64_t> flying;
    for (uint64_t i = 0; i < plan.chunks.size(); ++i) {
      ASSERT_TRUE(copier->Begin(i + 1, plan, plan.chunks[i], slab).ok());
      flying.insert(i + 1);
    }
    while (!flying.empty()) {
      for (const CopyDone& done : copier->Completed(1'000'000)) {
        EXPECT_TRUE(done.error.ok()) << done.error;
        EXPECT_EQ(flying.erase(done.tag), 1u);
      }
    }
    EXPECT_TRUE(copier->Completed(0).empty());
  }

  // Returns the bytes that the exporter's process reads in its memory.
  static std::vector<std::byte> Contents(const cuda::Memory& memory, const SharedBuffer& shared) {
    std::vector<std::byte> bytes(shared.bytes);
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory.Read({shared.buffer, 0}, shared.bytes), shared.bytes,
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return bytes;
  }

  // Rows of two parts, as MakeTransferPlan() has them, arrive where the plan says.
  void ExpectArrives(CudaCopier* copier, std::vector<uint32_t> neurons, uint64_t dest_stride,
                     const std::shared_ptr<const SharedMemory>& segment) {
    cuda::Memory memory;
    const SharedBuffer shared = Exported(&memory);
    auto slab = copier->Open(UniqueFd(fcntl(shared.fd, F_DUPFD_CLOEXEC, 0)), HandleOf(shared));
    ASSERT_TRUE(slab.ok()) << slab.status();
    const std::byte* const source = segment->map.data();
    const uint64_t second = kRows * kRowBytes;
    const uint64_t places = neurons.empty() ? kRows : neurons.size();
    PlanOptions options;
    options.chunk_bytes = 64 << 10;
    options.chunk_neurons = 50;
    options.min_chunk_bytes = 0;
    const TransferPlan plan =
        MakeTransferPlan({{source, 0, kRowBytes, dest_stride, kRowBytes},
                          {source + second, places * dest_stride, kRowBytes, dest_stride, kRowBytes}},
                         kRows, neurons, 0, options);
    CopyAll(copier, plan, slab->get());
    const std::vector<std::byte> found = Contents(memory, shared);
    for (uint64_t part = 0; part < 2; ++part) {
      for (uint64_t i = 0; i < places; ++i) {
        const uint64_t row = neurons.empty() ? i : neurons[i];
        ASSERT_EQ(std::memcmp(found.data() + (part * places + i) * dest_stride,
                              source + part * second + row * kRowBytes, kRowBytes),
                  0)
            << "part " << part << ", place " << i;
      }
    }
    slab->reset();
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaCopierTest, testing::Values(0, 1, 2, 3));

TEST_P(CudaCopierTest, RowsArriveByTheCopyEngineAlone) {
  const auto segment = RandomSegment(2 * kRows * kRowBytes);
  CudaCopier copier({});
  copier.AddSource({segment->map.data(), segment->map.bytes()}, segment);
  std::vector<uint32_t> some;
  for (uint32_t i = 3; i < kRows; i += 1 + i % 3) {
    some.push_back(i);
  }
  ExpectArrives(&copier, {}, kRowBytes, segment);
  ExpectArrives(&copier, some, kRowBytes, segment);
  ExpectArrives(&copier, some, kRowBytes + 600, segment);
  ExpectArrives(&copier, {}, kRowBytes + 600, segment);
  EXPECT_EQ(CountersOfFake().launches, 0u);
  EXPECT_EQ(CountersOfFake().pageable_copies, 0u);
}

TEST_P(CudaCopierTest, LockedMemoryTravelsWithoutAStop) {
  const auto segment = RandomSegment(2 * kRows * kRowBytes);
  CudaCopier copier({});
  ExpectArrives(&copier, {}, kRowBytes, segment);  // the device is there from here on
  const uint64_t before = CountersOfFake().copies;
  copier.AddSource({segment->map.data(), segment->map.bytes()}, segment);
  copier.WaitForSources();
  EXPECT_EQ(copier.locked_bytes(), segment->map.bytes());
  ExpectArrives(&copier, {}, kRowBytes, segment);
  // Both parts lie side by side: a copy each and chunk, and one to look.
  EXPECT_EQ(CountersOfFake().copies - before, 2u * ((kRows + 31) / 32) + 1);
}

// inferd's view of weightd's segments, of which a driver may know no way to lock them.
TEST_P(CudaCopierTest, PagesWithoutWriteAccessAreLockedOrTravel) {
  const auto segment = RandomSegment(2 * kRows * kRowBytes);
  absl::StatusOr<Mapping> view =
      MapSharedMemory(segment->fd.get(), segment->map.bytes(), /*writable=*/false, /*populate=*/false);
  ASSERT_TRUE(view.ok()) << view.status();
  auto seen = std::make_shared<SharedMemory>();
  seen->map = *std::move(view);
  for (const bool locks : {true, false}) {
    cuda_fake::ResetFake({.seed = GetParam(), .read_only_pages = locks});
    CudaCopier copier({});
    ExpectArrives(&copier, {}, kRowBytes, seen);  // the device is there from here on
    copier.AddSource({seen->map.data(), seen->map.bytes()}, seen);
    copier.WaitForSources();
    EXPECT_EQ(copier.locked_bytes(), locks ? seen->map.bytes() : 0u);
    ExpectArrives(&copier, {}, kRowBytes, seen);
    EXPECT_EQ(CountersOfFake().pageable_copies, 0u);
  }
}

TEST_P(CudaCopierTest, ARingSmallerThanWhatTravelsIsUsedAgain) {
  const auto segment = RandomSegment(2 * kRows * kRowBytes);
  CudaCopier copier({.ring_bytes = 64 << 10});
  std::vector<uint32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  ExpectArrives(&copier, {}, kRowBytes, segment);  // nothing is locked
  ExpectArrives(&copier, all, kRowBytes + 600, segment);
  EXPECT_EQ(CountersOfFake().pageable_copies, 0u);
  CudaCopier smallest({.ring_bytes = 2048});  // a row is longer than a piece
  ExpectArrives(&smallest, all, kRowBytes, segment);
}

TEST_P(CudaCopierTest, ARingUsedAgainWithoutTheWaitIsFound) {
  cuda_fake::ResetFake({.seed = GetParam(), .drop_call = "cudaEventQuery"});
  const auto segment = RandomSegment(kRows * kRowBytes);
  cuda::Memory memory;
  const SharedBuffer shared = Exported(&memory);
  {
    CudaCopier copier({.ring_bytes = 64 << 10});
    auto slab = copier.Open(UniqueFd(fcntl(shared.fd, F_DUPFD_CLOEXEC, 0)), HandleOf(shared));
    ASSERT_TRUE(slab.ok()) << slab.status();
    const TransferPlan plan = MakeTransferPlan({{segment->map.data(), 0, kRowBytes, kRowBytes, kRowBytes}},
                                               kRows, {}, 0, PlanOptions());
    CopyAll(&copier, plan, slab->get());
    cudaDeviceSynchronize();  // the host learns, before the slab goes, what it had taken for done
  }
  bool found = false;
  for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
    found = found || absl::StrContains(report.text, "the host has written pinned memory");
  }
  EXPECT_TRUE(found);
}

TEST_P(CudaCopierTest, MemoryIsLetGoOfBeforeItGoes) {
  CudaCopier copier({});
  auto owned = RandomSegment(1 << 20);
  auto borrowed = RandomSegment(2 << 20);
  cuda::Memory memory;
  const SharedBuffer shared = Exported(&memory);
  ASSERT_TRUE(copier.Open(UniqueFd(fcntl(shared.fd, F_DUPFD_CLOEXEC, 0)), HandleOf(shared)).ok());
  copier.AddSource({owned->map.data(), owned->map.bytes()}, owned);
  copier.AddSource({borrowed->map.data(), borrowed->map.bytes()}, nullptr);
  copier.WaitForSources();
  EXPECT_EQ(copier.locked_bytes(), uint64_t{3} << 20);
  const std::weak_ptr<const SharedMemory> watched = owned;
  const std::byte* const base = owned->map.data();
  owned.reset();
  EXPECT_FALSE(watched.expired()) << "locked memory was unmapped";
  copier.RemoveSource(base);
  copier.RemoveSource(borrowed->map.data());
  EXPECT_EQ(cudaHostUnregister(borrowed->map.data()), cudaErrorHostMemoryNotRegistered)
      << "it may be unmapped now, and is still locked";
  copier.WaitForSources();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(copier.locked_bytes(), 0u);
}

TEST_P(CudaCopierTest, WhatAClientOffersIsRefusedByName) {
  CudaCopier copier({});
  cuda::Memory memory;
  const SharedBuffer shared = Exported(&memory);
  const auto offer = [&](int fd, const SlabHandle& handle) {
    return copier.Open(UniqueFd(fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0)), handle).status();
  };
  SlabHandle elsewhere = HandleOf(shared);
  elsewhere.device[0] ^= 1;
  EXPECT_EQ(offer(shared.fd, elsewhere).code(), absl::StatusCode::kNotFound);
  SlabHandle larger = HandleOf(shared);
  larger.bytes *= 2;
  EXPECT_EQ(offer(shared.fd, larger).code(), absl::StatusCode::kInvalidArgument);
  SlabHandle uneven = HandleOf(shared);
  uneven.bytes -= 4096;
  EXPECT_EQ(offer(shared.fd, uneven).code(), absl::StatusCode::kInvalidArgument);
  SlabHandle nothing = HandleOf(shared);
  nothing.bytes = 0;
  EXPECT_EQ(offer(shared.fd, nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(offer(-1, HandleOf(shared)).code(), absl::StatusCode::kInvalidArgument);
  SlabHandle other_kind = HandleOf(shared);
  other_kind.kind = HandleKind::kCudaIpc;
  EXPECT_EQ(offer(-1, other_kind).code(), absl::StatusCode::kInvalidArgument) << "no bytes of a handle";
  const UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(offer(other.get(), HandleOf(shared)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(offer(shared.fd, HandleOf(shared)).ok());
  cuda_fake::TakeReports();  // the fake reports what the driver was asked for
}

// An IPC handle opens in another process alone, and is not needed in this one.
TEST_P(CudaCopierTest, MemoryOfThisProcessIsWrittenByItsAddress) {
  const auto segment = RandomSegment(kRows * kRowBytes);
  for (const HandleKind kind : {HandleKind::kCudaFd, HandleKind::kCudaIpc}) {
    CudaCopier copier({});
    cuda::Memory memory(kind);
    const SharedBuffer shared = Exported(&memory);
    SlabHandle handle{shared.kind, shared.device, shared.bytes, shared.ipc};
    if (kind == HandleKind::kCudaIpc) {
      const absl::Status refused = copier.Open(UniqueFd(), handle).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StrContains(refused.message(), "4194304 bytes")) << refused;
    }
    handle.own = shared.own;
    const auto slab = copier.Open(UniqueFd(), handle);
    ASSERT_TRUE(slab.ok()) << slab.status();
    EXPECT_EQ((*slab)->kind(), kind);
    const TransferPlan plan = MakeTransferPlan({{segment->map.data(), 0, kRowBytes, kRowBytes, kRowBytes}},
                                               kRows, {}, 0, PlanOptions());
    CopyAll(&copier, plan, slab->get());
    EXPECT_EQ(std::memcmp(Contents(memory, shared).data(), segment->map.data(), kRows * kRowBytes), 0);
  }
}

TEST_P(CudaCopierTest, DescriptorsAndMemoryAreGivenBack) {
  const auto segment = RandomSegment(2 * kRows * kRowBytes);
  const auto count = [] {
    int open = 0;
    for (int fd = 0; fd < 256; ++fd) {
      open += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    }
    return open;
  };
  const int before = count();
  {
    CudaCopier copier({});
    ExpectArrives(&copier, {}, kRowBytes, segment);
    EXPECT_EQ(count(), before);
  }
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, total);
}

}  // namespace
}  // namespace sluice
