// The transfer engine over an asynchronous copier: no byte is announced before its arrival.
#include "tests/support/fakes/late_copier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <variant>
#include <vector>

#include "common/protocol/session_abi.h"
#include "common/protocol/transfer_engine.h"
#include "tests/support/fakes/fake_clock.h"

namespace sluice {
namespace {

constexpr uint32_t kRows = 64;
constexpr uint64_t kRow = 1000;
constexpr uint64_t kJobBytes = kRows * kRow;
constexpr uint64_t kSlabBytes = 1 << 20;

class LateCopierTest : public ::testing::Test {
 protected:
  LateCopierTest()
      : source_(kJobBytes), memory_(*CreateSharedMemory("slab", kSlabBytes, PeerAccess::kReadWrite)) {
    for (size_t i = 0; i < source_.size(); ++i) {
      source_[i] = static_cast<std::byte>(1 + i % 251);
    }
    slab_ = Open();
  }
  std::shared_ptr<Slab> Open() {
    return *copier_->Open(UniqueFd(dup(memory_.fd.get())),
                          {HandleKind::kCudaFd, LateCopier::kDevice, kSlabBytes});
  }
  TransferJob Job(uint64_t number, uint32_t link, uint64_t dest) {
    TransferJob job;
    job.number = number;
    job.session = 1;
    job.link = link;
    PlanOptions options;
    options.chunk_bytes = 4 * kRow;
    job.plan = MakeTransferPlan({{source_.data(), dest, kRow, kRow, kRow}}, kRows, {}, 8, options);
    job.slab = slab_;
    job.progress = std::make_shared<std::atomic<uint64_t>>(0);
    job.request = number;
    return job;
  }
  // Runs until no more progress is possible without the clock.
  void Run(TransferEngine* engine) {
    for (int idle = 0; idle < 50; idle = engine->Step() ? 0 : idle + 1) {
    }
    for (TransferEvent& event : engine->TakeEvents()) {
      ends_.push_back(std::get<TransferEnd>(event));
    }
  }
  bool Holds(uint64_t dest, uint64_t rows) const {
    return std::memcmp(memory_.map.data() + dest, source_.data(), rows * kRow) == 0;
  }

  FakeClock clock_;
  std::vector<std::byte> source_;
  SharedMemory memory_;
  std::shared_ptr<LateCopier> copier_ = std::make_shared<LateCopier>(7);
  std::shared_ptr<Slab> slab_;
  std::vector<TransferEnd> ends_;
};

TEST_F(LateCopierTest, NothingIsAnnouncedBeforeItsCopyHasEnded) {
  TransferEngine engine({.threads = 0}, &clock_, [] {}, {copier_});
  const uint32_t link = engine.AddLink({});
  copier_->Hold(true);
  TransferJob job = Job(1, link, 0);
  const auto progress = job.progress;
  engine.Submit(std::move(job));
  Run(&engine);
  EXPECT_GT(copier_->begun(), 1u);
  EXPECT_EQ(progress->load(), 0u);
  EXPECT_TRUE(ends_.empty());
  copier_->Hold(false);
  while (ends_.empty()) {
    engine.Step();
    const auto tiles = static_cast<uint32_t>(progress->load());
    ASSERT_TRUE(Holds(0, 8 * tiles)) << tiles << " tiles";
    for (TransferEvent& event : engine.TakeEvents()) {
      ends_.push_back(std::get<TransferEnd>(event));
    }
  }
  EXPECT_FALSE(ends_[0].cancelled);
  EXPECT_EQ(ends_[0].link_bytes, kJobBytes);
  EXPECT_EQ(progress->load(), PackProgress(1, 8));
  EXPECT_TRUE(Holds(0, kRows));
}

TEST_F(LateCopierTest, TheModelledLinkCountsFromTheEndOfTheCopy) {
  TransferEngine engine({.threads = 0}, &clock_, [] {}, {copier_});
  const uint32_t link = engine.AddLink(MakeLinkRate(/*gbps=*/1, /*latency_us=*/5));
  TransferJob job = Job(1, link, 0);
  const auto progress = job.progress;
  engine.Submit(std::move(job));
  Run(&engine);
  EXPECT_EQ(progress->load(), 0u) << "copied, but not over the link";
  while (engine.NextArrival() != 0) {
    clock_.Advance(std::max<int64_t>(0, engine.NextArrival() - clock_.NowNanos()));
    Run(&engine);
  }
  EXPECT_EQ(progress->load(), PackProgress(1, 8));
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(Holds(0, kRows));
}

TEST_F(LateCopierTest, AnErrorOfTheDeviceEndsTheTransferAndNoOther) {
  for (const bool at_once : {true, false}) {
    TransferEngine engine({.threads = 0}, &clock_, [] {}, {copier_});
    const uint32_t link = engine.AddLink({});
    copier_->Fail(at_once ? 1 : 0, at_once ? 0 : 1);
    ends_.clear();
    engine.Submit(Job(1, link, 0));
    Run(&engine);
    engine.Submit(Job(2, link, kJobBytes));
    Run(&engine);
    ASSERT_EQ(ends_.size(), 2u);
    EXPECT_EQ(ends_[0].number, 1u);
    EXPECT_TRUE(ends_[0].cancelled);
    EXPECT_EQ(ends_[0].error.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(ends_[1].error.ok());
    EXPECT_TRUE(Holds(kJobBytes, kRows));
    EXPECT_EQ(engine.stats().transfers_waiting, 0u);
  }
}

TEST_F(LateCopierTest, CancelledTransferEndsWhenItsCopiesHaveEnded) {
  TransferEngine engine({.threads = 0}, &clock_, [] {}, {copier_});
  const uint32_t link = engine.AddLink({});
  copier_->Hold(true);
  engine.Submit(Job(1, link, 0));
  Run(&engine);
  const std::weak_ptr<Slab> watched = slab_;
  slab_.reset();
  engine.Cancel(1);
  Run(&engine);
  EXPECT_TRUE(ends_.empty()) << "the device may still write";
  EXPECT_FALSE(watched.expired());
  copier_->Hold(false);
  Run(&engine);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(watched.expired());
}

TEST_F(LateCopierTest, MemoryKindWithoutCopierIsRefused) {
  TransferEngine without({.threads = 0}, &clock_, [] {});
  TransferEngine with({.threads = 0}, &clock_, [] {}, {copier_});
  const auto outcome = [this](TransferEngine* engine, const SlabHandle& handle) {
    engine->MapSlab(1, 2, UniqueFd(dup(memory_.fd.get())), handle, {}, nullptr);
    engine->Step();
    std::vector<TransferEvent> events = engine->TakeEvents();
    return std::get<SlabMapped>(events.at(0)).mapped.status().code();
  };
  const SlabHandle device{HandleKind::kCudaFd, LateCopier::kDevice, kSlabBytes};
  EXPECT_EQ(outcome(&without, device), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(outcome(&with, device), absl::StatusCode::kOk);
  EXPECT_EQ(outcome(&with, {HandleKind::kCudaFd, {1, 2, 3}, kSlabBytes}), absl::StatusCode::kNotFound);
  EXPECT_EQ(outcome(&with, {HandleKind::kMemoryFile, LateCopier::kDevice, kSlabBytes}),
            absl::StatusCode::kInvalidArgument);
}

// With threads: for the sanitizer, and to check that no thread sleeps on a copy that has ended.
TEST_F(LateCopierTest, DestructorWaitsForCopiesInFlight) {
  const MonotonicClock clock;
  for (uint64_t round = 0; round < 20; ++round) {
    std::map<uint64_t, int> ended;
    {
      TransferEngine engine({.threads = 2}, &clock, [] {}, {copier_});
      const uint32_t fast = engine.AddLink({});
      const uint32_t slow = engine.AddLink(MakeLinkRate(2, 20));
      for (uint64_t number = 1; number <= 12; ++number) {
        engine.Submit(Job(number, number % 2 == 0 ? fast : slow, (number - 1) * kJobBytes));
      }
      // In the last rounds the engine is destroyed while copies are in flight.
      for (int i = 0; round < 15 && ended.size() < 12; ++i) {
        ASSERT_LT(i, 100'000'000);
        for (const TransferEvent& event : engine.TakeEvents()) {
          const auto& end = std::get<TransferEnd>(event);
          ASSERT_EQ(++ended[end.number], 1);
          ASSERT_FALSE(end.cancelled);
          ASSERT_TRUE(Holds((end.number - 1) * kJobBytes, kRows));
        }
      }
    }
    EXPECT_EQ(copier_->begun(), 0u);
    std::memset(memory_.map.data(), 0, kSlabBytes);
  }
}

}  // namespace
}  // namespace sluice
