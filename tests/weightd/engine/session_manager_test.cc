// Opening sessions, their parts of the budget, and stalled sessions: the session manager, the shares and the
// stall detection, without a pump.
#include "weightd/engine/session_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/protocol/lease.h"
#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {
namespace {

using testing::HasSubstr;

constexpr uint64_t kPart = 64 * 1024;
constexpr uint64_t kExpert = 3 * kPart;
constexpr uint64_t kDense = 2 * kPart;
constexpr uint64_t kBudget = kDense + 10 * kExpert;
constexpr int64_t kAttachTimeout = 1000;
constexpr int64_t kStallNanos = 3'000'000'000;

class SessionManagerTest : public ::testing::Test {
 protected:
  SessionManagerTest() : poller_(*Poller::Create()) {
    EXPECT_TRUE(packs_
                    .Add(std::make_unique<FakeExtentSource>(
                             FakeExtentSource::Shape{.dense = {kDense}, .part_bytes = kPart}),
                         {0})
                    .ok());
  }
  static SessionParams Params(uint32_t threads = 1, uint64_t quota = 0) {
    SessionParams params;
    params.packs = {0};
    params.compute_threads = threads;
    params.quota_bytes = quota;
    return params;
  }

  FakeClock clock_;
  Poller poller_;
  FakeBlockReader reader_{FakeBlockReader::Mode::kManual};
  StoreLog log_;
  SessionTable sessions_{&log_};
  DramTier tier_{
      Arena::Options{.budget = kBudget},
      Arena::Listener{[](uint32_t, const std::shared_ptr<const SharedMemory>&) {}, [](uint32_t) {}}};
  Fetcher fetcher_{{}, &tier_, &reader_, &clock_, {}};
  PackTable packs_{/*boot_epoch=*/77, &tier_, &fetcher_};
  BudgetShares shares_{kBudget, /*session_quota=*/0, &packs_, &sessions_, &tier_.store()};
  SessionManager session_manager_{
      77, kAttachTimeout, {&packs_, &shares_, &sessions_, &tier_, &poller_, &clock_}};
  StalledSessions stalled_{kStallNanos, &shares_, &sessions_};
};

TEST_F(SessionManagerTest, ReserveIsTwiceTheLargestExpertPerThread) {
  const auto handle = session_manager_.Open(Params(/*threads=*/2));
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->reserved_bytes, 4 * kExpert);
  EXPECT_EQ(handle->boot_epoch, 77u);
  EXPECT_EQ(sessions_.size(), 1u);
  EXPECT_EQ(shares_.PrefetchHeadroom(0), 6 * kExpert) << "nothing of the dense weights' and of its minimum";
  EXPECT_EQ(shares_.PrefetchHeadroom(kExpert), 5 * kExpert);
  EXPECT_EQ(shares_.PrefetchHeadroom(kBudget), 0u);
  EXPECT_EQ(shares_.FairShare(), 10 * kExpert);
}

TEST_F(SessionManagerTest, MinimaOfAllSessionsStayWithinTheBudget) {
  ASSERT_TRUE(session_manager_.Open(Params(/*threads=*/3)).ok());
  const auto refused = session_manager_.Open(Params(/*threads=*/3));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(session_manager_.Open(Params(/*threads=*/2)).ok());
  EXPECT_EQ(shares_.FairShare(), 5 * kExpert) << "of two";
  const auto leases_nothing = session_manager_.Open(Params(/*threads=*/0));
  ASSERT_TRUE(leases_nothing.ok()) << leases_nothing.status();
  EXPECT_EQ(leases_nothing->reserved_bytes, 0u);
}

TEST_F(SessionManagerTest, AQuotaHoldsDenseWeightsAndMinimum) {
  const auto less = session_manager_.Open(Params(1, kDense + 2 * kExpert - 1));
  EXPECT_EQ(less.status().code(), absl::StatusCode::kInvalidArgument) << "the client's own bound";
  ASSERT_TRUE(session_manager_.Open(Params(1, kDense + 2 * kExpert)).ok());
  shares_.SetSessionQuota(kDense + kExpert);
  const auto ours = session_manager_.Open(Params());
  EXPECT_EQ(ours.status().code(), absl::StatusCode::kResourceExhausted) << "weightd's";
  EXPECT_THAT(std::string(ours.status().message()), HasSubstr("--session-quota"));
}

TEST_F(SessionManagerTest, InvalidParametersAreRefusedByName) {
  SessionParams params = Params();
  params.packs = {0, 0};
  EXPECT_THAT(std::string(session_manager_.Open(params).status().message()), HasSubstr("twice"));
  params.packs = {1};
  EXPECT_THAT(std::string(session_manager_.Open(params).status().message()), HasSubstr("does not exist"));
  params = Params(/*threads=*/4097);
  EXPECT_EQ(session_manager_.Open(params).status().code(), absl::StatusCode::kInvalidArgument);
  session_manager_.Close();
  EXPECT_EQ(session_manager_.Open(Params()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sessions_.size(), 0u);
}

TEST_F(SessionManagerTest, UnattachedSessionsAreEnded) {
  EXPECT_EQ(session_manager_.next_deadline(), 0);
  ASSERT_TRUE(session_manager_.Open(Params()).ok());
  const int64_t deadline = clock_.NowNanos() + kAttachTimeout;
  EXPECT_EQ(session_manager_.next_deadline(), deadline);
  session_manager_.EndUnattached(deadline - 1);
  EXPECT_TRUE(sessions_.TakeMarked().empty());
  session_manager_.EndUnattached(deadline);
  ASSERT_EQ(sessions_.TakeMarked().size(), 1u);
}

// A session that holds 8 of the 10 experts beside the dense weights by leases, which cost no message.
class StalledSessionsTest : public SessionManagerTest {
 protected:
  StalledSessionsTest() {
    holder_ = session_manager_.Open(Params())->session;
    starver_ = session_manager_.Open(Params())->session;
    Session* session = sessions_.Find(holder_);
    const uint32_t extents = packs_.source(0)->extent_count();
    for (uint32_t extent = 1; extent <= 8 * 3 && extent < extents; ++extent) {
      std::byte* dest = nullptr;
      EXPECT_EQ(tier_.BeginFill(extent, &dest), DramTier::AllocResult::kAllocated);
      tier_.Publish(extent);
      uint64_t place;
      uint64_t generation;
      EXPECT_TRUE(
          TryLease(packs_.residency(0)[extent], session->mutable_pins(0)[extent], &place, &generation));
    }
    EXPECT_EQ(shares_.HeldBy(*session), 8 * kExpert - kDense);
    now_ = clock_.NowNanos() + 1;
    stalled_.EndStalled(now_);  // the first look is a sign of each
  }

  uint64_t holder_ = 0;
  uint64_t starver_ = 0;
  int64_t now_ = 0;
};

TEST_F(StalledSessionsTest, SilentHoardersEndWhenAnotherStarves) {
  stalled_.OnStarved(starver_, now_, now_);
  stalled_.OnStarved(starver_, now_ + 1, now_ + kStallNanos);
  stalled_.EndStalled(now_ + kStallNanos - 1);
  EXPECT_TRUE(sessions_.TakeMarked().empty()) << "not for so long";
  stalled_.EndStalled(now_ + kStallNanos);
  const auto marked = sessions_.TakeMarked();
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_EQ(marked[0].session, holder_);
  EXPECT_TRUE(marked[0].misbehaved);
  EXPECT_EQ(stalled_.ended(), 1u);
}

TEST_F(StalledSessionsTest, NoSessionEndsWhileNoneStarves) {
  stalled_.EndStalled(now_ + kStallNanos);
  stalled_.OnStarved(starver_, now_, now_ + kStallNanos);
  stalled_.OnServed(starver_);
  stalled_.EndStalled(now_ + kStallNanos);
  EXPECT_TRUE(sessions_.TakeMarked().empty());
}

TEST_F(StalledSessionsTest, SessionsThatStopAskingDoNotStarve) {
  stalled_.OnStarved(starver_, now_, now_);
  stalled_.EndStalled(now_ + kStallNanos);
  EXPECT_TRUE(sessions_.TakeMarked().empty());
}

TEST_F(StalledSessionsTest, ASignOfLifeIsEnough) {
  stalled_.OnStarved(starver_, now_, now_ + kStallNanos);
  sessions_.Find(holder_)->view().cursors->last_stamp.value.store(5);
  stalled_.EndStalled(now_ + kStallNanos);
  EXPECT_TRUE(sessions_.TakeMarked().empty());
}

}  // namespace
}  // namespace sluice::weightd
