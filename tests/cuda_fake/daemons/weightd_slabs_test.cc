// Slabs in CUDA memory that clients lend a real weightd, on the fake: what it refuses, by which name, and
// that neither the session nor anybody else's notices. The fake of this process is the exporters', that of
// weightd's the importer.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "inferd/session/session_weight_client.h"
#include "kernels/cuda/cuda_memory.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "tests/support/weightd_process.h"

namespace sluice {
namespace {

constexpr uint64_t kSlabBytes = 4 << 20;

class WeightdSlabsTest : public testing::TestWithParam<HandleKind> {
 protected:
  WeightdSlabsTest() {
    cuda_fake::ResetFake({});
    const std::filesystem::path build = std::filesystem::path(ProgramPath("weightd")).parent_path() / "..";
    setenv("SLUICE_CUDA_MODULE", (build / "tests" / "libsluice_cuda_fake.so").c_str(), 1);
    setenv("SLUICE_FAKE_CUDA", ("reports=" + folder_.File("reports")).c_str(), 1);
    weightd_.Start();
  }

  std::unique_ptr<inferd::SessionWeightClient> Connect() {
    inferd::SessionWeightClientOptions options;
    options.socket = weightd_.socket();
    options.pack_dir = pack_.dir();
    auto client = inferd::SessionWeightClient::Connect(options, SteadyNow() + absl::Seconds(30));
    EXPECT_TRUE(client.ok()) << client.status() << "\n" << weightd_.log();
    return client.ok() ? *std::move(client) : nullptr;
  }

  inferd::SlabOffer NewSlab() {
    const absl::StatusOr<SharedBuffer> shared = memory_.AllocateShared(kSlabBytes, nullptr);
    EXPECT_TRUE(shared.ok()) << shared.status();
    buffers_.push_back(shared->buffer);
    inferd::SlabOffer offer;
    offer.fd = shared->fd;
    offer.bytes = shared->bytes;
    offer.kind = shared->kind;
    offer.ipc = shared->ipc;
    offer.device = shared->device;
    return offer;
  }

  static absl::StatusCode CodeOf(inferd::SessionWeightClient* client, const inferd::SlabOffer& offer) {
    return client->OfferSlab(offer).status().code();
  }

  // A dense extent comes whole into the slab that was the test's `index`-th.
  void ExpectArrives(inferd::SessionWeightClient* client, uint32_t number, size_t index) {
    constexpr uint32_t kExtent = 1;
    inferd::TransferTarget target;
    target.slab = number;
    inferd::FetchRequest request = ExtentRequest(++next_id_, kExtent);
    request.transfer = &target;
    ASSERT_TRUE(client->Submit(request).ok());
    const absl::StatusOr<inferd::FetchCompletion> done = Await(client, next_id_);
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_EQ(done->code, absl::StatusCode::kOk);
    const std::vector<std::byte>& expected = pack_.extent(kExtent);
    std::vector<std::byte> found(expected.size());
    ASSERT_EQ(cudaMemcpy(found.data(), memory_.Read({buffers_[index], 0}, found.size()), found.size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0);
  }

  // Allocations of device memory that weightd has mapped, by the numbers of their files.
  size_t MappedByWeightd() {
    std::ifstream maps("/proc/" + std::to_string(weightd_.process().pid()) + "/maps");
    std::set<std::string> files;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:fake cuda memory") != std::string::npos) {
        const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
        files.insert(words.at(4));
      }
    }
    return files.size();
  }
  void ExpectLogged(const std::string& words) {
    // The line is written behind the answer.
    const absl::Time deadline = SteadyNow() + absl::Seconds(20);
    while (!absl::StrContains(weightd_.log(), words) && SteadyNow() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(absl::StrContains(weightd_.log(), words)) << words << "\nin\n" << weightd_.log();
  }
  // kill(2) returns before the last thread has stopped.
  void Stop() {
    weightd_.process().Signal(SIGSTOP);
    const std::string tasks = "/proc/" + std::to_string(weightd_.process().pid()) + "/task";
    const absl::Time deadline = SteadyNow() + absl::Seconds(20);
    bool stopped = false;
    while (!stopped && SteadyNow() < deadline) {
      stopped = true;
      for (const auto& task : std::filesystem::directory_iterator(tasks)) {
        std::ifstream file(task.path() / "stat");
        std::string line;
        std::getline(file, line);
        stopped = stopped && line.find(") T ") != std::string::npos;
      }
    }
    EXPECT_TRUE(stopped);
  }
  void AwaitMapped(size_t count) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(20);
    while (MappedByWeightd() != count && SteadyNow() < deadline) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    EXPECT_EQ(MappedByWeightd(), count);
  }

  TempDir folder_;
  TestPack pack_;
  WeightdProcess weightd_{folder_.path(), {pack_.dir()}, 32 << 20};
  cuda::Memory memory_{GetParam()};
  std::vector<BufferId> buffers_;
  uint64_t next_id_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Handles, WeightdSlabsTest,
                         testing::Values(HandleKind::kCudaFd, HandleKind::kCudaIpc),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// Regardless of the bytes that a driver counts to an opened address: the bytes stated lie within.
TEST_P(WeightdSlabsTest, SlabsWithinALargerRangeAreTaken) {
  weightd_.Kill();
  setenv("SLUICE_FAKE_CUDA", ("ipc_margin=2097152 reports=" + folder_.File("reports")).c_str(), 1);
  weightd_.Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  inferd::SlabOffer slab = NewSlab();
  const absl::StatusOr<uint32_t> number = client->OfferSlab(slab);
  ASSERT_TRUE(number.ok()) << number.status() << "\n" << weightd_.log();
  ExpectArrives(client.get(), *number, 0);
  slab = NewSlab();
  slab.bytes *= 4;
  EXPECT_EQ(CodeOf(client.get(), slab), absl::StatusCode::kInvalidArgument) << "more than there is";
}

TEST_P(WeightdSlabsTest, OffersThatLieAreRefusedByNameAndNobodyNotices) {
  const auto other = Connect();
  ASSERT_NE(other, nullptr);
  const absl::StatusOr<uint32_t> others = other->OfferSlab(NewSlab());
  ASSERT_TRUE(others.ok()) << others.status() << "\n" << weightd_.log();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const inferd::SlabOffer good = NewSlab();

  inferd::SlabOffer lie = good;
  for (const uint64_t bytes : {uint64_t{0}, kSlabBytes - 4096, 2 * kSlabBytes, uint64_t{1} << 60}) {
    lie.bytes = bytes;
    EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << bytes;
  }
  lie = good;
  lie.device[0] ^= 1;
  EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kNotFound) << "another GPU";
  lie.device = {};
  EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kNotFound) << "no GPU";
  lie = good;
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (GetParam() == HandleKind::kCudaFd) {
    lie.fd = null.get();
    EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << "no memory of CUDA's";
    lie.fd = fcntl(good.fd, F_DUPFD_CLOEXEC, 0);
    close(lie.fd);
    EXPECT_NE(CodeOf(client.get(), lie), absl::StatusCode::kOk) << "closed";
    ExpectLogged("4190208 bytes are no whole granules of 2097152 bytes");
  } else {
    lie.ipc = {};
    EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << "no handle";
    lie.ipc.fill(0xab);
    EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << "made up";
    lie = NewSlab();
    ASSERT_TRUE(memory_.Free(buffers_.back()).ok());
    EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << "freed already";
    ExpectLogged("its IPC handle is of 4194304 bytes from byte 0 on, 8388608 were stated");
    ExpectLogged("its IPC handle, stated to be of 4194304 bytes, names no memory that another process has");
  }
  ExpectLogged("none of the 1 GPUs here has the UUID");
  EXPECT_EQ(MappedByWeightd(), 1u) << "nothing of what was refused is held";

  const absl::StatusOr<uint32_t> number = client->OfferSlab(good);
  ASSERT_TRUE(number.ok()) << number.status() << "\n" << weightd_.log();
  EXPECT_EQ(CodeOf(client.get(), good), absl::StatusCode::kPermissionDenied) << "offered twice";
  EXPECT_EQ(CodeOf(other.get(), good), absl::StatusCode::kPermissionDenied) << "somebody else's";
  EXPECT_EQ(MappedByWeightd(), 2u);
  ExpectLogged("its memory is slab");
  ExpectArrives(client.get(), *number, 1);
  ExpectArrives(other.get(), *others, 0);
}

TEST_P(WeightdSlabsTest, AnOfferOfTheOtherKindIsRefused) {
  const auto other = Connect();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_NE(other, nullptr);
  inferd::SlabOffer lie = NewSlab();
  const bool named = GetParam() == HandleKind::kCudaIpc;
  lie.kind = named ? HandleKind::kCudaFd : HandleKind::kCudaIpc;
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  lie.fd = named ? null.get() : lie.fd;
  EXPECT_EQ(CodeOf(client.get(), lie), absl::StatusCode::kInvalidArgument) << "what it is not";
  const absl::StatusOr<uint32_t> number = other->OfferSlab(NewSlab());
  ASSERT_TRUE(number.ok()) << number.status() << "\n" << weightd_.log();
  ExpectArrives(other.get(), *number, 1);
}

// The second of two copies is on a link that takes a second for each when the session is closed, and weightd
// has the memory until it has arrived.
TEST_P(WeightdSlabsTest, MemoryIsFreedBehindTheLastCopyIntoIt) {
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  constexpr uint32_t kExtent = 1;
  inferd::SlabOffer slab = NewSlab();
  slab.link_gbps = static_cast<double>(pack_.extent(kExtent).size()) * 1e-9;
  const absl::StatusOr<uint32_t> number = client->OfferSlab(slab);
  ASSERT_TRUE(number.ok()) << number.status();
  for (const uint64_t id : {1, 2}) {
    inferd::TransferTarget target;
    target.slab = *number;
    target.base[0] = (id - 1) << 20;
    inferd::FetchRequest request = ExtentRequest(id, kExtent);
    request.transfer = &target;
    ASSERT_TRUE(client->Submit(request).ok());
  }
  const absl::StatusOr<inferd::FetchCompletion> first = Await(client.get(), 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(MappedByWeightd(), 1u);
  const absl::Status taken = client->RevokeSlabs(SteadyNow() + absl::Seconds(20));
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_EQ(MappedByWeightd(), 0u);
  EXPECT_TRUE(memory_.Free(buffers_[0]).ok());
  for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
    ADD_FAILURE() << report.text;
  }
  EXPECT_FALSE(client->connected());
  ASSERT_TRUE(client->Reconnect(SteadyNow() + absl::Seconds(20)).ok());
  const absl::StatusOr<uint32_t> again = client->OfferSlab(NewSlab());
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectArrives(client.get(), *again, 1);
}

TEST_P(WeightdSlabsTest, AWeightdThatDiesOrHangsIsNotWaitedForForEver) {
  for (const int signal : {SIGSTOP, SIGKILL}) {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    const absl::StatusOr<uint32_t> number = client->OfferSlab(NewSlab());
    ASSERT_TRUE(number.ok()) << number.status();
    if (signal == SIGSTOP) {
      Stop();
    } else {
      weightd_.process().Signal(signal);
    }
    const bool hangs = signal == SIGSTOP;
    const absl::Status taken =
        client->RevokeSlabs(hangs ? SteadyNow() + absl::Seconds(2) : absl::InfiniteFuture());
    EXPECT_EQ(taken.code(), hangs ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk) << taken;
    // Another slab waits no more: this would never end.
    EXPECT_EQ(client->RevokeSlabs(absl::InfiniteFuture()), taken);
    weightd_.process().Signal(SIGCONT);
  }
}

TEST_P(WeightdSlabsTest, MemoryOutlivesDescriptorButNotSession) {
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  inferd::SlabOffer slab = NewSlab();
  UniqueFd copy(slab.fd < 0 ? -1 : fcntl(slab.fd, F_DUPFD_CLOEXEC, 0));
  slab.fd = copy.get();
  const absl::StatusOr<uint32_t> number = client->OfferSlab(slab);
  ASSERT_TRUE(number.ok()) << number.status();
  copy.reset();
  ExpectLogged(absl::StrCat("of 4194304 bytes, shared by ", NameOf(GetParam())));
  ExpectArrives(client.get(), *number, 0);
  client.reset();
  AwaitMapped(0);
  EXPECT_TRUE(memory_.Free(buffers_[0]).ok());
}

}  // namespace
}  // namespace sluice
