// Submissions on their way to the fetcher and completions on their way back, with the packs they name: a
// router, a pack table and a tier, without a core.
#include "weightd/engine/request_router.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/local_client.h"
#include "weightd/engine/pack_table.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kPart = 4096;
constexpr uint64_t kExpert = 3 * kPart;
constexpr uint32_t kRing = 64;

class RequestRouterTest : public ::testing::Test {
 protected:
  RequestRouterTest() {
    reader_.SetSink([this](ReadResult result) { reads_.push_back(std::move(result)); });
    EXPECT_TRUE(packs_.Add(std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{}), {0}).ok());
    Session::Options options;
    options.id = sessions_.NewId();
    options.layout.ring_entries = kRing;
    options.packs = {SessionPackPlan{0, packs_.source(0), packs_.residency_fd(0)}};
    session_ = sessions_.Add(*Session::Create(std::move(options)));
    session_->state = SessionState::kActive;
    tier_.AddPins(0, session_->id(), session_->pins(0), &session_->timeline());
    LocalSession local;
    local.control = session_->view();
    client_ = std::make_unique<LocalClient>(std::move(local));
  }
  void Read() {
    fetcher_.Pump();
    for (const ReadResult& read : std::exchange(reads_, {})) fetcher_.OnRead(read);
  }
  // The next completion, reaped.
  CompletionEntry Next() {
    CompletionEntry entry{};
    EXPECT_TRUE(client_->Peek(&entry)) << "nothing was completed";
    client_->Reap();
    return entry;
  }
  bool Idle() {
    CompletionEntry entry{};
    return !client_->Peek(&entry);
  }
  ExtentId FirstOf(uint32_t layer, uint32_t expert) {
    return static_cast<const FakeExtentSource*>(packs_.source(0))->FirstExpertExtent(layer, expert);
  }

  FakeClock clock_;
  FakeBlockReader reader_{FakeBlockReader::Mode::kImmediate};
  std::vector<ReadResult> reads_;
  StoreLog log_;
  std::string logged_;
  SessionTable sessions_{&log_};
  DramTier tier_{{.budget = 16 * kExpert, .max_segment_bytes = 16 * kExpert},
                 {[](uint32_t, const auto&) {}, [](uint32_t) {}}};
  Fetcher fetcher_{
      {},
      &tier_,
      &reader_,
      &clock_,
      {.complete = [this](uint64_t session, const CompletionEntry& entry,
                          std::vector<ExtentId> held) { router_.Complete(session, entry, std::move(held)); },
       .filled = [](const CompletionEntry&, const std::vector<ExtentId>&) { FAIL() << "no transfer"; },
       .progress = [](uint64_t, uint32_t, uint64_t) {},
       .log_error = [this](const std::string& line) { logged_ += line; }}};
  PackTable packs_{/*boot_epoch=*/77, &tier_, &fetcher_};
  BudgetShares shares_{16 * kExpert, 0, &packs_, &sessions_, &tier_.store()};
  StalledSessions stalled_{1'000'000, &shares_, &sessions_};
  TransferRequests transfers_{{},      &fetcher_, &tier_,
                              nullptr, nullptr,   [](uint64_t, const CompletionEntry&) {}};
  RequestRouter router_{{&sessions_, &fetcher_, &transfers_, &tier_, &stalled_}};
  Session* session_ = nullptr;
  std::unique_ptr<LocalClient> client_;
};

TEST_F(RequestRouterTest, PinsOfAFillHoldUntilCompletionIsReaped) {
  client_->Submit(LocalClient::FillExpert(5, 1, 2));
  EXPECT_FALSE(router_.Serve(session_)) << "the ring is empty now";
  EXPECT_TRUE(Idle()) << "nothing was read yet";
  Read();
  EXPECT_TRUE(tier_.store().Held(FirstOf(1, 2)));
  const CompletionEntry entry = Next();
  EXPECT_EQ(entry.id, 5u);
  EXPECT_EQ(entry.code, 0u);
  EXPECT_EQ(entry.bytes, kExpert);
  EXPECT_EQ(session_->bytes_read, kExpert);
  router_.Serve(session_);
  EXPECT_FALSE(tier_.store().Held(FirstOf(1, 2)));
}

TEST_F(RequestRouterTest, InvalidEntryIsAnsweredAtOnceByFieldName) {
  client_->Submit(LocalClient::FillExpert(1, 1, 999));
  client_->Submit(LocalClient::FillExpert(2, 0, 0));
  client_->Submit(LocalClient::FillExpert(2, 0, 1));
  router_.Serve(session_);
  CompletionEntry refused = Next();
  EXPECT_EQ(refused.id, 1u);
  EXPECT_EQ(refused.field, EntryField::kExpert);
  refused = Next();
  EXPECT_EQ(refused.id, 2u) << "an id that is outstanding";
  EXPECT_EQ(refused.field, EntryField::kId);
  EXPECT_TRUE(Idle());
  Read();
  EXPECT_EQ(Next().code, 0u) << "the first request of that id goes on";
}

TEST_F(RequestRouterTest, CancelEndsARequestAndSaysWhetherThereWasOne) {
  SubmissionEntry cancel = LocalClient::Plain(8, Opcode::kCancel);
  cancel.target = 7;
  client_->Submit(cancel);
  client_->Submit(LocalClient::FillExpert(7, 0, 0));
  cancel.id = 9;
  client_->Submit(cancel);
  router_.Serve(session_);
  const CompletionEntry missing = Next();
  EXPECT_EQ(missing.id, 8u);
  EXPECT_EQ(static_cast<absl::StatusCode>(missing.code), absl::StatusCode::kNotFound);
  const CompletionEntry cancelled = Next();
  EXPECT_EQ(cancelled.id, 7u);
  EXPECT_EQ(static_cast<absl::StatusCode>(cancelled.code), absl::StatusCode::kCancelled);
  EXPECT_EQ(Next().code, 0u);
}

TEST_F(RequestRouterTest, ARoundTakesABoundedBatch) {
  for (uint64_t id = 1; id <= kRing; ++id) {
    ASSERT_EQ(client_->Submit(LocalClient::FillExpert(id, 9, 0)), RingResult::kOk);
  }
  int rounds = 0;
  while (router_.Serve(session_)) ++rounds;
  EXPECT_GT(rounds, 0) << "one session's ring must not keep the others waiting";
  for (uint64_t id = 1; id <= kRing; ++id) EXPECT_EQ(Next().id, id);
}

TEST_F(RequestRouterTest, SessionWithAnImpossibleCursorEnds) {
  session_->view().cursors->submission_tail.value.store(1'000'000);
  EXPECT_FALSE(router_.Serve(session_));
  const auto marked = sessions_.TakeMarked();
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_TRUE(marked[0].misbehaved);
}

TEST_F(RequestRouterTest, MemoryThatTheSystemRefusesIsNamedInTheLog) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{0, files.rlim_max};
  client_->Submit(LocalClient::FillExpert(5, 0, 0));
  router_.Serve(session_);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Read();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(static_cast<absl::StatusCode>(Next().code), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(logged_, "sluice-segment")) << logged_;
}

TEST_F(RequestRouterTest, PinsOfASessionThatIsGoneFallAtOnce) {
  client_->Submit(LocalClient::FillExpert(5, 0, 0));
  router_.Serve(session_);
  session_->state = SessionState::kLost;
  EXPECT_FALSE(router_.Serve(session_));
  Read();
  EXPECT_FALSE(tier_.store().Held(FirstOf(0, 0)));
}

TEST_F(RequestRouterTest, PacksAreFoundByModelAndCountTheirDenseBytes) {
  FakeExtentSource::Shape shape;
  shape.model_id = "ffeeddccbbaa99887766554433221100";
  shape.dense = {8192, 4096};
  const auto number = packs_.Add(std::make_unique<FakeExtentSource>(shape), {1});
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(packs_.Find(shape.model_id), static_cast<int>(*number));
  EXPECT_EQ(packs_.Find("0123456789abcdef0123456789abcdef"), -1);
  EXPECT_EQ(packs_.DenseBytes({0, *number}), 12288u);
  EXPECT_EQ(packs_.source(7), nullptr);
  EXPECT_NE(packs_.residency_fd(*number), packs_.residency_fd(0));
}

TEST_F(RequestRouterTest, PackBeyondTheBudgetIsRefusedWithNumbers) {
  FakeExtentSource::Shape shape;
  shape.dense = {15 * kExpert};
  const auto number = packs_.Add(std::make_unique<FakeExtentSource>(shape), {0});
  EXPECT_TRUE(absl::IsResourceExhausted(number.status()));
  EXPECT_TRUE(absl::StrContains(number.status().message(), absl::StrCat(17 * kExpert))) << number.status();
  EXPECT_EQ(packs_.size(), 1u);
}

}  // namespace
}  // namespace sluice::weightd
