// A client's view of each fault of the disk, through the whole store. The table is printed: docs quote it.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>

#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/faulty_block_reader.h"
#include "tests/support/local_client.h"
#include "weightd/engine/weight_store.h"

namespace sluice::weightd {
namespace {

struct Row {
  ReadFault fault;
  const char* name;
  absl::StatusCode once;   // the fault strikes one read
  absl::StatusCode twice;  // and the fresh read after it, or all that follow
  bool bad;                // the extent is marked bad after two
};

constexpr Row kTable[] = {
    {ReadFault::kShort, "file ends early", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, false},
    {ReadFault::kEio, "EIO", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, false},
    {ReadFault::kEagain, "EAGAIN to the end", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, false},
    {ReadFault::kBitFlip, "flipped bit", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, true},
    {ReadFault::kMisdirected, "misdirected block", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, true},
    {ReadFault::kStale, "stale data", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, true},
    {ReadFault::kGone, "device removed", absl::StatusCode::kOk, absl::StatusCode::kDataLoss, false},
    {ReadFault::kStuck, "stuck read", absl::StatusCode::kOk, absl::StatusCode::kDeadlineExceeded, false},
};

class FaultTableTest : public ::testing::Test {
 protected:
  FaultTableTest() {
    auto faulty = std::make_unique<FaultyBlockReader>(
        std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate), /*seed=*/1, /*rate=*/0.0,
        std::vector<ReadFault>{});
    disk_ = faulty.get();
    Open(std::move(faulty), 1024 * 1024);
  }
  void Open(std::unique_ptr<BlockReader> reader, uint64_t budget) {
    client_.reset();
    WeightStoreOptions options;
    options.dram_budget = budget;
    options.attach_timeout_ms = 0;
    options.read_timeout_ms = 20;
    store_ = *WeightStore::Create(options, std::move(reader));
    auto source = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{.layers = 4, .experts = 16});
    source_ = source.get();
    SessionParams params;
    params.packs = {*store_->AddSource(std::move(source))};
    client_ = std::make_unique<LocalClient>(
        *store_->Look(&StoreCore::Local, store_->Control(&StoreCore::OpenSession, params)->session));
  }
  // Fetches an extent; OK only if its leased bytes are right.
  absl::StatusCode Fetch(uint32_t extent, uint32_t* named = nullptr) {
    client_->Submit(LocalClient::FillExtent(++id_, extent));
    CompletionEntry done;
    if (!client_->Await(&done)) {
      return absl::StatusCode::kDeadlineExceeded;
    }
    if (done.code == 0) {
      uint64_t place = 0;
      EXPECT_TRUE(client_->Lease(extent, &place));
      const std::byte* data = store_->Look(&StoreCore::SegmentData, PlaceSegment(place)) + PlaceOffset(place);
      EXPECT_TRUE(source_->BytesAreRight(extent, {data, source_->extent(extent).length}))
          << "a wrong byte got out";
      client_->Release(extent, StepStamp(id_, 0));
    }
    client_->Reap();
    if (named != nullptr) {
      *named = done.extent;
    }
    return static_cast<absl::StatusCode>(done.code);
  }

  FaultyBlockReader* disk_ = nullptr;
  std::unique_ptr<WeightStore> store_;
  const FakeExtentSource* source_ = nullptr;
  std::unique_ptr<LocalClient> client_;
  uint64_t id_ = 0;
};

TEST_F(FaultTableTest, OneRereadHealsAFaultOrOnlyThatExtentIsLost) {
  std::printf("%-20s %-14s %-14s %s\n", "fault", "once", "twice", "afterwards");
  uint32_t extent = 0;
  for (const Row& row : kTable) {
    disk_->FailNext(row.fault, 1);
    const absl::StatusCode once = Fetch(extent++);
    EXPECT_EQ(once, row.once) << row.name;
    disk_->FailNext(row.fault, 2);
    uint32_t named = 0;
    const absl::StatusCode twice = Fetch(extent, &named);
    EXPECT_EQ(twice, row.twice) << row.name;
    EXPECT_EQ(named, extent) << row.name;
    disk_->ReleaseStuck();
    const absl::StatusCode after = Fetch(extent);
    EXPECT_EQ(after, row.bad ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk) << row.name;
    EXPECT_EQ(Fetch(extent + 1), absl::StatusCode::kOk) << row.name << " hurt its neighbour";
    std::printf("%-20s %-14s %-14s %s\n", row.name, absl::StatusCodeToString(once).c_str(),
                absl::StatusCodeToString(twice).c_str(), row.bad ? "marked bad" : "tried again: OK");
    extent += 2;
  }
  const StoreStats stats = store_->Look(&StoreCore::Stats);
  EXPECT_EQ(stats.bad_extents, 3u);
  EXPECT_EQ(stats.slow_reads, 2u);
  EXPECT_EQ(stats.hedged_reads, 2u);
  EXPECT_EQ(stats.hedged_reads_won, 1u);
  EXPECT_EQ(stats.timed_out, 1u);
}

// A disk that fails every read from now on: requests end, and say which extent; what is in memory is served;
// and nothing is lost for good once the disk answers again, but extents whose bytes were wrong twice.
TEST_F(FaultTableTest, LastingFaultEndsRequestsUntilTheDiskHeals) {
  uint32_t extent = 0;
  for (const Row& row : kTable) {
    if (row.fault == ReadFault::kStuck) {
      continue;  // SilentDiskEndsRequestsAndServesAgainLater
    }
    const uint32_t in_memory = extent++;
    ASSERT_EQ(Fetch(in_memory), absl::StatusCode::kOk);
    disk_->FailNext(row.fault, 1000);
    for (uint32_t i = 0; i < 3; ++i) {
      uint32_t named = 0;
      EXPECT_EQ(Fetch(extent + i, &named), row.twice) << row.name;
      EXPECT_EQ(named, extent + i) << row.name;
      EXPECT_EQ(Fetch(in_memory), absl::StatusCode::kOk) << row.name << " hurt what is in memory";
    }
    disk_->FailNext(ReadFault::kNone, 0);
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(Fetch(extent + i), row.bad ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk) << row.name;
    }
    extent += 3;
  }
  EXPECT_EQ(store_->Look(&StoreCore::Stats).bad_extents, 9u)
      << "three kinds of wrong bytes, three extents each";
  EXPECT_EQ(store_->Look(&StoreCore::Stats).in_flight_bytes, 0u);
}

TEST_F(FaultTableTest, SeveralFaultsOfOneReadHealToo) {
  disk_->FailNextWith({ReadFault::kMisdirected, ReadFault::kBitFlip});
  EXPECT_EQ(Fetch(0), absl::StatusCode::kOk);
  EXPECT_EQ(store_->Look(&StoreCore::Stats).checksum_failures, 1u);
  disk_->FailNextWith({ReadFault::kStuck, ReadFault::kBitFlip});
  EXPECT_EQ(Fetch(1), absl::StatusCode::kOk) << "by the hedged read";
  disk_->FailNextWith({ReadFault::kStuck, ReadFault::kEio});
  EXPECT_EQ(Fetch(2), absl::StatusCode::kOk);
  disk_->ReleaseStuck();  // wrong bytes arrive in a slot that belongs to no extent
  for (uint32_t extent = 0; extent < 3; ++extent) {
    EXPECT_EQ(Fetch(extent), absl::StatusCode::kOk);
  }
  EXPECT_EQ(store_->Look(&StoreCore::Stats).hedged_reads_won, 2u);
}

TEST_F(FaultTableTest, SilentDiskEndsRequestsAndServesAgainLater) {
  disk_->FailNext(ReadFault::kStuck, 1'000'000);
  for (uint64_t id = 1000; id < 1020; ++id) {
    client_->Submit(LocalClient::FillExtent(id, static_cast<uint32_t>(id - 1000)));
  }
  for (int i = 0; i < 20; ++i) {
    CompletionEntry done;
    ASSERT_TRUE(client_->Await(&done));
    EXPECT_EQ(static_cast<absl::StatusCode>(done.code), absl::StatusCode::kDeadlineExceeded);
    client_->Reap();
  }
  disk_->FailNext(ReadFault::kNone, 0);
  EXPECT_EQ(Fetch(100), absl::StatusCode::kOk)
      << "stuck reads take no share of what others may have in flight";
  disk_->ReleaseStuck();
  for (uint32_t extent = 0; extent < 20; ++extent) {
    EXPECT_EQ(Fetch(extent), absl::StatusCode::kOk);
  }
  EXPECT_EQ(store_->Look(&StoreCore::Stats).in_flight_bytes, 0u);
}

TEST_F(FaultTableTest, ThousandsOfRandomFaultsLetNoWrongByteOut) {
  disk_ = nullptr;
  Open(std::make_unique<FaultyBlockReader>(
           std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate),
           /*seed=*/42, /*rate=*/0.3,
           std::vector<ReadFault>{ReadFault::kShort, ReadFault::kEio, ReadFault::kEagain, ReadFault::kBitFlip,
                                  ReadFault::kMisdirected, ReadFault::kStale, ReadFault::kGone}),
       /*budget=*/10 * 4096);
  std::map<absl::StatusCode, int> seen;
  for (int i = 0; i < 5000; ++i) {
    ++seen[Fetch(static_cast<uint32_t>(i * 7919) % source_->extent_count())];
  }
  EXPECT_EQ(seen[absl::StatusCode::kOk] + seen[absl::StatusCode::kDataLoss], 5000);
  EXPECT_GT(seen[absl::StatusCode::kOk], 100);
  EXPECT_GT(seen[absl::StatusCode::kDataLoss], 100);
  EXPECT_EQ(store_->Look(&StoreCore::Stats).in_flight_bytes, 0u);
}

}  // namespace
}  // namespace sluice::weightd
