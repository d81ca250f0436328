// The transfer engine without threads, on a clock that the test moves: order and times of copies, and their
// visible effects.
#include "common/protocol/transfer_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "common/protocol/session_abi.h"
#include "tests/support/fakes/fake_clock.h"

namespace sluice {
namespace {

constexpr uint32_t kRows = 64;
constexpr uint64_t kRow = 1000;

class TransferEngineTest : public ::testing::Test {
 protected:
  TransferEngineTest() : source_(kRows * kRow) {
    for (size_t i = 0; i < source_.size(); ++i) {
      source_[i] = static_cast<std::byte>(i * 131 + i / 256);
    }
    auto memory = CreateSharedMemory("slab", 1 << 20, PeerAccess::kReadWrite);
    memory_ = *std::move(memory);
    std::memset(memory_.map.data(), 0, memory_.map.bytes());
    slab_ = *HostSlab::Map(memory_.fd.get(), memory_.map.bytes());
  }

  // All rows of one part, `rows_a_chunk` at a time, to `dest` of the slab.
  TransferJob Job(uint64_t number, uint32_t link, RequestClass request_class, uint64_t dest = 0,
                  uint32_t tile_rows = 0, uint64_t rows_a_chunk = 4) {
    TransferJob job;
    job.number = number;
    job.session = link;
    job.link = link;
    job.request_class = request_class;
    PlanOptions options;
    options.chunk_bytes = rows_a_chunk * kRow;
    job.plan = MakeTransferPlan({{source_.data(), dest, kRow, kRow, kRow}}, kRows, {}, tile_rows, options);
    job.slab = slab_;
    job.progress = progress_;
    job.request = number;
    return job;
  }
  // Runs everything that can be done now.
  void Run() {
    while (engine_.Step()) {
    }
    for (TransferEvent& event : engine_.TakeEvents()) {
      ends_.push_back(std::get<TransferEnd>(event));
    }
  }
  // Moves the clock from arrival to arrival until `nanos` have passed.
  void RunFor(int64_t nanos) {
    const int64_t end = clock_.NowNanos() + nanos;
    Run();
    while (engine_.NextArrival() != 0 && engine_.NextArrival() <= end) {
      clock_.Advance(std::max<int64_t>(0, engine_.NextArrival() - clock_.NowNanos()));
      Run();
    }
    clock_.Advance(end - clock_.NowNanos());
    Run();
  }
  uint32_t Landed() const { return static_cast<uint32_t>(progress_->load()); }
  bool Holds(uint64_t dest, uint32_t rows) const {
    return std::memcmp(slab_->data() + dest, source_.data(), rows * kRow) == 0;
  }

  FakeClock clock_;
  std::vector<std::byte> source_;
  SharedMemory memory_;
  std::shared_ptr<HostSlab> slab_;
  std::shared_ptr<std::atomic<uint64_t>> progress_ = std::make_shared<std::atomic<uint64_t>>(0);
  TransferEngine engine_{{.threads = 0, .schedule = {.window_bytes = 3 * 4 * kRow}}, &clock_, [] {}};
  std::vector<TransferEnd> ends_;
};

TEST_F(TransferEngineTest, AnUnthrottledTransferIsThereWhenItIsCopied) {
  const uint32_t link = engine_.AddLink({});
  engine_.Submit(Job(5, link, RequestClass::kDemand));
  Run();
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].number, 5u);
  EXPECT_FALSE(ends_[0].cancelled);
  EXPECT_EQ(ends_[0].link_bytes, kRows * kRow);
  EXPECT_TRUE(Holds(0, kRows));
}

TEST_F(TransferEngineTest, TilesAreAnnouncedWhenTheLinkDeliversThem) {
  const uint32_t link = engine_.AddLink(MakeLinkRate(/*gbps=*/1, /*latency_us=*/5));
  engine_.Submit(Job(1, link, RequestClass::kDemand, 0, /*tile_rows=*/8));
  RunFor(5000 + 8 * kRow - 1);
  EXPECT_EQ(Landed(), 0u);
  RunFor(1);
  EXPECT_EQ(Landed(), 1u);
  EXPECT_EQ(progress_->load(), PackProgress(1, 1));
  RunFor(8 * kRow);
  EXPECT_EQ(Landed(), 2u);
  RunFor(kRows * kRow);
  EXPECT_EQ(Landed(), 8u);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].copy_nanos, 5000 + static_cast<int64_t>(kRows * kRow));
}

TEST_F(TransferEngineTest, ADemandWaitsForOnePrefetchChunk) {
  const uint32_t link = engine_.AddLink(MakeLinkRate(1, 0));
  engine_.Submit(Job(1, link, RequestClass::kPrefetch));
  RunFor(1000);
  engine_.Submit(Job(2, link, RequestClass::kDemand, 100'000));
  RunFor(3000 + kRows * kRow);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].number, 2u);
  EXPECT_TRUE(Holds(100'000, kRows));
  RunFor(10 * kRows * kRow);
  EXPECT_EQ(ends_.size(), 2u);
  EXPECT_EQ(engine_.stats().link_demand_bytes, kRows * kRow);
}

TEST_F(TransferEngineTest, NothingIsWrittenAfterACancelledTransfersEnd) {
  const uint32_t link = engine_.AddLink(MakeLinkRate(1, 0));
  engine_.Submit(Job(1, link, RequestClass::kDemand));
  engine_.Submit(Job(2, link, RequestClass::kDemand, 100'000));
  RunFor(4 * kRow + 1);
  EXPECT_FALSE(engine_.CancelIfNotStarted(1));
  EXPECT_TRUE(engine_.CancelIfNotStarted(2));
  engine_.Cancel(1);
  engine_.Cancel(99);
  Run();
  ASSERT_EQ(ends_.size(), 1u) << "the first's chunks are still on their way";
  EXPECT_EQ(ends_[0].number, 2u);
  EXPECT_EQ(ends_[0].link_bytes, 0u);
  RunFor(1'000'000);
  ASSERT_EQ(ends_.size(), 2u);
  EXPECT_TRUE(ends_[1].cancelled);
  EXPECT_EQ(ends_[1].link_bytes, 4u * 4 * kRow);
  const std::vector<std::byte> before(slab_->data(), slab_->data() + slab_->bytes());
  RunFor(1'000'000);
  EXPECT_EQ(std::memcmp(before.data(), slab_->data(), before.size()), 0);
}

TEST_F(TransferEngineTest, ASlabsMemoryLivesUntilItsLastCopyHasEnded) {
  const uint32_t link = engine_.AddLink(MakeLinkRate(1, 0));
  engine_.Submit(Job(1, link, RequestClass::kDemand));
  RunFor(1);
  engine_.RemoveLink(link);
  const std::weak_ptr<Slab> slab = slab_;
  slab_.reset();
  engine_.Cancel(1);
  EXPECT_FALSE(slab.expired());
  RunFor(1'000'000);
  EXPECT_TRUE(slab.expired());
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(TransferEngineTest, TheLinkKeepsItsRateThoughEveryWakeIsLate) {
  const uint32_t link = engine_.AddLink(MakeLinkRate(1, 2));
  std::mt19937_64 random(3);
  uint64_t number = 0;
  const int64_t begin = clock_.NowNanos();
  while (clock_.NowNanos() - begin < 100'000'000) {
    while (number < ends_.size() + 3) {
      engine_.Submit(Job(++number, link, RequestClass::kPrefetch));
    }
    Run();
    if (engine_.NextArrival() != 0) {
      clock_.Advance(std::max<int64_t>(0, engine_.NextArrival() - clock_.NowNanos()) +
                     static_cast<int64_t>(random() % 60'000));
    }
  }
  const double bytes = static_cast<double>(engine_.stats().link_bytes);
  // One chunk of 4000 bytes at a time, each after its latency.
  const double modelled = 100e6 / (4000.0 + 2000.0) * 4000.0;
  EXPECT_NEAR(bytes / modelled, 1.0, 0.02);
}

// Seeded traffic on three links with every kind of end: each job ends once, delivered bytes are right, tiles
// never run ahead, and no job is left.
TEST_F(TransferEngineTest, EveryJobEndsOnceUnderRandomTraffic) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    ends_.clear();
    const uint32_t links[] = {engine_.AddLink({}), engine_.AddLink(MakeLinkRate(2, 10)),
                              engine_.AddLink(MakeLinkRate(0.5, 0))};
    std::map<uint64_t, uint64_t> dest;  // by number
    uint64_t number = seed * 1'000'000;
    for (int event = 0; event < 400; ++event) {
      const uint64_t dice = random() % 10;
      if (dice < 4) {
        const uint64_t at = random() % (slab_->bytes() - kRows * kRow);
        dest[++number] = at;
        engine_.Submit(Job(number, links[random() % 3],
                           random() % 2 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch, at,
                           static_cast<uint32_t>(random() % 20), 1 + random() % 10));
      } else if (dice == 4) {
        engine_.Cancel(seed * 1'000'000 + random() % 100);
      } else if (dice == 5) {
        engine_.CancelIfNotStarted(seed * 1'000'000 + random() % 100);
      } else if (dice == 6) {
        engine_.Promote(seed * 1'000'000 + random() % 100);
      } else {
        RunFor(static_cast<int64_t>(random() % 50'000));
      }
    }
    RunFor(60'000'000'000);
    ASSERT_EQ(ends_.size(), dest.size()) << "seed " << seed;
    std::map<uint64_t, int> seen;
    for (const TransferEnd& end : ends_) {
      ASSERT_EQ(++seen[end.number], 1);
      ASSERT_TRUE(end.cancelled || end.link_bytes == kRows * kRow);
    }
    EXPECT_EQ(engine_.stats().transfers_waiting, 0u);
    for (uint32_t link : links) {
      engine_.DropSession(link);
      engine_.RemoveLink(link);
    }
  }
}

TEST_F(TransferEngineTest, FileIsMappedOnAnEngineThreadOrRefusedByName) {
  engine_.MapSlab(4, 9, UniqueFd(dup(memory_.fd.get())), {.bytes = memory_.map.bytes()}, {}, nullptr);
  engine_.MapSlab(4, 10, UniqueFd(dup(memory_.fd.get())), {.bytes = memory_.map.bytes() + 1}, {}, nullptr);
  auto sparse = CreateSharedMemory("sparse", 1 << 20, PeerAccess::kReadWrite);
  engine_.MapSlab(4, 11, UniqueFd(dup(sparse->fd.get())), {.bytes = 1 << 20}, {}, nullptr);
  auto read_only = CreateSharedMemory("read only", 4096, PeerAccess::kReadOnly);
  read_only->map.data()[0] = std::byte{1};
  engine_.MapSlab(4, 12, UniqueFd(dup(read_only->fd.get())), {.bytes = 4096}, {}, nullptr);
  while (engine_.Step()) {
  }
  const std::vector<TransferEvent> events = engine_.TakeEvents();
  ASSERT_EQ(events.size(), 4u);
  for (const TransferEvent& event : events) {
    const auto& mapped = std::get<SlabMapped>(event);
    EXPECT_EQ(mapped.mapped.ok(), mapped.slab == 9) << mapped.mapped.status();
    EXPECT_TRUE(mapped.mapped.ok() || absl::IsInvalidArgument(mapped.mapped.status()));
  }
}

// With threads: for the sanitizer. The progress word must order the bytes that it announces.
TEST_F(TransferEngineTest, ProgressWordIsSetAfterItsBytes) {
  const MonotonicClock clock;
  Mutex mutex;
  CondVar woken;
  bool wake = false;
  TransferEngine engine({.threads = 2}, &clock, [&] {
    MutexLock lock(&mutex);
    wake = true;
    woken.Signal();
  });
  const uint32_t fast = engine.AddLink({});
  const uint32_t slow = engine.AddLink(MakeLinkRate(0.5, 20));
  size_t ended = 0;
  constexpr uint64_t kJobs = 40;
  for (uint64_t number = 1; number <= kJobs; ++number) {
    TransferJob job = Job(number, number % 2 == 0 ? fast : slow,
                          number % 3 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch,
                          (number - 1) % 10 * 100'000, 16);
    job.progress = std::make_shared<std::atomic<uint64_t>>(0);
    const auto word = job.progress;
    engine.Submit(std::move(job));
    if (number % 5 == 0) {
      engine.Cancel(number - 1);
    }
    while (ended < number) {
      const auto tiles = static_cast<uint32_t>(word->load(std::memory_order_acquire));
      ASSERT_TRUE(Holds((number - 1) % 10 * 100'000, 16 * tiles));
      for (const TransferEvent& event : engine.TakeEvents()) {
        ended += std::holds_alternative<TransferEnd>(event) ? 1 : 0;
      }
      MutexLock lock(&mutex);
      while (!wake && ended < number) {
        woken.Wait(&mutex);
      }
      wake = false;
    }
  }
  EXPECT_EQ(engine.stats().transfers, kJobs);
}

}  // namespace
}  // namespace sluice
