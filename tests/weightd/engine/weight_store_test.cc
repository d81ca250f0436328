// The store behind its facade, with its pump thread, over real files and fake ones.
#include "weightd/engine/weight_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/fakes/faulty_block_reader.h"
#include "tests/support/local_client.h"
#include "tests/support/temp_dir.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kKiB = 1024;

// Writes the file whose bytes the fake source describes.
void WriteFile(const FakeExtentSource& source) {
  std::vector<std::byte> bytes(source.file_bytes());
  FakeExtentSource::FillBytes(0, bytes);
  std::ofstream out(source.file_path(0), std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

struct Opened {
  std::unique_ptr<WeightStore> store;
  const FakeExtentSource* source = nullptr;
  uint64_t session = 0;
  std::unique_ptr<LocalClient> client;
};

Opened Open(FakeExtentSource::Shape shape, uint64_t budget, std::unique_ptr<BlockReader> reader,
            bool direct = true) {
  Opened opened;
  WeightStoreOptions options;
  options.dram_budget = budget;
  options.direct = direct;
  options.attach_timeout_ms = 0;
  auto store = WeightStore::Create(options, std::move(reader));
  EXPECT_TRUE(store.ok()) << store.status();
  opened.store = *std::move(store);
  auto source = std::make_unique<FakeExtentSource>(std::move(shape));
  opened.source = source.get();
  if (opened.source->file_path(0) != "fake.bin") {
    WriteFile(*opened.source);
  }
  auto pack = opened.store->AddSource(std::move(source));
  EXPECT_TRUE(pack.ok()) << pack.status();
  SessionParams params;
  params.packs = {*pack};
  auto session = opened.store->Control(&StoreCore::OpenSession, params);
  EXPECT_TRUE(session.ok()) << session.status();
  opened.session = session->session;
  opened.client = std::make_unique<LocalClient>(*opened.store->Look(&StoreCore::Local, opened.session));
  return opened;
}

// Fetches, leases, checks the bytes and releases one expert.
absl::StatusCode UseExpert(Opened& o, uint64_t id, uint32_t layer, uint32_t expert) {
  const uint32_t first = o.source->FirstExpertExtent(layer, expert);
  uint64_t places[3];
  for (uint32_t i = 0; i < 3; ++i) {
    if (!o.client->Lease(first + i, &places[i])) {
      for (uint32_t j = 0; j < i; ++j) {
        o.client->Release(first + j, StepStamp(id, j));
      }
      EXPECT_EQ(o.client->Submit(LocalClient::FillExpert(id, layer, expert)), RingResult::kOk);
      CompletionEntry done;
      EXPECT_TRUE(o.client->Await(&done));
      EXPECT_EQ(done.id, id);
      if (done.code == 0) {
        for (uint32_t j = 0; j < 3; ++j) {
          EXPECT_TRUE(o.client->Lease(first + j, &places[j])) << "held until the completion is reaped";
        }
      }
      o.client->Reap();
      if (done.code != 0) {
        return static_cast<absl::StatusCode>(done.code);
      }
      break;
    }
  }
  for (uint32_t i = 0; i < 3; ++i) {
    const std::byte* data =
        o.store->Look(&StoreCore::SegmentData, PlaceSegment(places[i])) + PlaceOffset(places[i]);
    const uint64_t length = o.source->extent(first + i).length;
    EXPECT_TRUE(o.source->BytesAreRight(first + i, {data, length}));
    o.client->Release(first + i, StepStamp(id, i));
  }
  return absl::StatusCode::kOk;
}

// Bytes of the file that the page cache holds.
uint64_t CachedBytes(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_NE(map, MAP_FAILED);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(mincore(map, bytes, pages.data()), 0);
  munmap(map, bytes);
  close(fd);
  uint64_t cached = 0;
  for (unsigned char page : pages) {
    cached += (page & 1) != 0 ? 4096 : 0;
  }
  return cached;
}

TEST(WeightStoreTest, DirectReadsLeaveNothingInThePageCache) {
  TempDir dir;
  FakeExtentSource::Shape shape;
  shape.path = dir.File("experts.bin");
  shape.layers = 2;
  shape.experts = 8;
  shape.part_bytes = 300 * kKiB;
  Opened o = Open(shape, 8 * 3 * 300 * kKiB, nullptr);
  if (o.store->Look(&StoreCore::Stats).io_engine.find("buffered") != std::string::npos) {
    GTEST_SKIP() << "not run: " << dir.path() << " takes no O_DIRECT";
  }
  const int fd = open(shape.path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fsync(fd), 0);
  ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(fd);
  const uint64_t before = CachedBytes(shape.path, o.source->file_bytes());
  uint64_t id = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    ASSERT_EQ(UseExpert(o, ++id, i / 8 % 2, i % 8), absl::StatusCode::kOk);
  }
  EXPECT_GT(o.store->Look(&StoreCore::Stats).bytes_read, o.source->file_bytes());
  EXPECT_LE(CachedBytes(shape.path, o.source->file_bytes()), before);
}

TEST(WeightStoreTest, ServesAModelFourTimesItsBudgetFromARealFile) {
  TempDir dir;
  FakeExtentSource::Shape shape;
  shape.path = dir.File("experts.bin");
  shape.layers = 4;
  shape.experts = 8;
  shape.part_bytes = 300 * kKiB;
  for (bool direct : {true, false}) {
    Opened o = Open(shape, 8 * 3 * 300 * kKiB, nullptr, direct);
    uint64_t id = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (uint32_t layer = 0; layer < 4; ++layer) {
        for (uint32_t expert = 0; expert < 8; ++expert) {
          ASSERT_EQ(UseExpert(o, ++id, layer, expert), absl::StatusCode::kOk);
        }
      }
    }
    const StoreStats stats = o.store->Look(&StoreCore::Stats);
    EXPECT_LE(stats.segment_bytes, stats.dram_budget);
    EXPECT_EQ(stats.resident_bytes, stats.dram_budget);
    EXPECT_GE(stats.evictions, 3u * 56);
    EXPECT_EQ(stats.bytes_read, stats.fills * 300 * kKiB);
    ASSERT_EQ(stats.sessions.size(), 1u);
    EXPECT_EQ(stats.sessions[0].held_extents, 0u);
    EXPECT_EQ(stats.sessions[0].outstanding, 0u);
  }
}

// A model like the sample: a few dense extents leased for good, experts of 3 x 112 KiB.
TEST(WeightStoreTest, SmallestBudgetServesEveryExpert) {
  TempDir dir;
  FakeExtentSource::Shape shape;
  shape.path = dir.File("model.bin");
  shape.dense = {1740 * kKiB, 92 * kKiB, 92 * kKiB, 512 * kKiB, 4 * kKiB};
  shape.layers = 4;
  shape.experts = 8;
  shape.part_bytes = 112 * kKiB;
  const FakeExtentSource model(shape);
  const uint64_t minimum = model.dense_bytes() + 2 * model.largest_expert_bytes();
  for (uint64_t budget : {minimum, uint64_t{6 * 1024 * kKiB}, model.file_bytes() / 4 * 3}) {
    for (bool dense_first : {true, false}) {
      Opened o = Open(shape, budget, nullptr);
      uint64_t id = 0;
      const auto use_experts = [&] {
        for (uint32_t i = 0; i < 32; ++i) {
          ASSERT_EQ(UseExpert(o, ++id, i % 4, i * 5 % 8), absl::StatusCode::kOk) << budget;
        }
      };
      if (!dense_first) {
        use_experts();
      }
      for (uint32_t extent = 0; extent < shape.dense.size(); ++extent) {
        CompletionEntry done;
        o.client->Submit(LocalClient::FillExtent(++id, extent));
        ASSERT_TRUE(o.client->Await(&done));
        ASSERT_EQ(done.code, 0) << "dense extent " << extent << " of a budget of " << budget;
        uint64_t place;
        ASSERT_TRUE(o.client->Lease(extent, &place));
        o.client->Reap();
      }
      use_experts();
      EXPECT_LE(o.store->Look(&StoreCore::Stats).segment_bytes, budget);
      EXPECT_EQ(o.store->Look(&StoreCore::Stats).no_room, 0u);
    }
  }
}

TEST(WeightStoreTest, ResidentExpertNeedsNoMessageAndNoRead) {
  Opened o = Open({}, 1024 * kKiB, std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate));
  ASSERT_EQ(UseExpert(o, 1, 0, 0), absl::StatusCode::kOk);
  const uint64_t requests = o.store->Look(&StoreCore::Stats).sessions[0].requests;
  ASSERT_EQ(UseExpert(o, 2, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(o.store->Look(&StoreCore::Stats).sessions[0].requests, requests);
  ASSERT_EQ(o.client->Submit(LocalClient::FillExpert(3, 0, 0)), RingResult::kOk);
  CompletionEntry done;
  ASSERT_TRUE(o.client->Await(&done));
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.bytes, 0u);
  EXPECT_EQ(done.extents, 3u);
}

// The pages of a segment come before the reads that need them, also those of slots that nothing reads into.
TEST(WeightStoreTest, NewSegmentsArePopulatedAhead) {
  const Opened opened = Open({.layers = 4, .experts = 16, .part_bytes = 64 * kKiB}, 32 * 1024 * kKiB,
                             std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate));
  opened.client->Submit(LocalClient::FillExtent(1, 0));
  CompletionEntry done;
  ASSERT_TRUE(opened.client->Await(&done));
  uint64_t place = 0;
  ASSERT_TRUE(opened.client->Lease(0, &place));
  const StoreStats stats = opened.store->Look(&StoreCore::Stats);
  ASSERT_EQ(stats.segments, 1u);
  ASSERT_GT(stats.segment_bytes, 64 * kKiB);
  const std::byte* const start = opened.store->Look(&StoreCore::SegmentData, PlaceSegment(place));
  std::vector<unsigned char> present(stats.segment_bytes / 4096);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  size_t pages = 0;
  while (pages < present.size() && std::chrono::steady_clock::now() < deadline) {
    ASSERT_EQ(mincore(const_cast<std::byte*>(start), stats.segment_bytes, present.data()), 0);
    pages = static_cast<size_t>(std::count(present.begin(), present.end(), 1));
    std::this_thread::yield();
  }
  EXPECT_EQ(pages, present.size());
  opened.client->Release(0, StepStamp(1, 0));
}

}  // namespace
}  // namespace sluice::weightd
