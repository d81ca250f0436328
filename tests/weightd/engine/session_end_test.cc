// Sessions: their reserves, their ends, and the effects of a misbehaving one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/weightd/engine/session_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class SessionEndTest : public SessionTest {};

// Two sessions, the first of which holds the whole memory.
class StalledSessionTest : public SessionEndTest {
 protected:
  void SetUp() override {
    Start(4 * kExpert);
    first_ = OpenSession();
    a_ = std::make_unique<LocalClient>(Client(first_));
    b_ = std::make_unique<LocalClient>(Client(OpenSession()));
  }
  // Leases `experts` experts for the first session.
  void Hold(uint32_t experts) {
    for (uint32_t e = 0; e < experts; ++e) {
      a_->Submit(LocalClient::FillExpert(e, 0, e));
    }
    Pump();
    reader_.CompleteAll();
    Pump();
    uint64_t place;
    for (uint32_t i = 0; i < 3 * experts; ++i) {
      ASSERT_TRUE(a_->Lease(ExpertExtentId(0, 0) + i, &place));
    }
    while (Next(a_.get())) {
    }
  }
  // Sends requests of the second session every half second, as an inferd that finds no room does, after
  // `before`.
  template <typename Before>
  absl::StatusCode AskFor(int half_seconds, Before before) {
    absl::StatusCode code = absl::StatusCode::kUnknown;
    for (int i = 0; i < half_seconds; ++i) {
      clock_.Advance(500'000'000);
      before();
      code = Ask(b_.get(), ++id_);
      if (code == absl::StatusCode::kOk) {
        return code;
      }
    }
    return code;
  }
  absl::StatusCode AskFor(int half_seconds) {
    return AskFor(half_seconds, [] {});
  }
  uint64_t first_ = 0;
  uint64_t id_ = 100;
  std::unique_ptr<LocalClient> a_;
  std::unique_ptr<LocalClient> b_;
};

TEST_F(StalledSessionTest, EndsBeyondItsShareAfterThreeStarvedSeconds) {
  Hold(4);
  EXPECT_EQ(AskFor(5), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(2)) << "not before the time";
  EXPECT_EQ(AskFor(3), absl::StatusCode::kOk);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_EQ(core_->Stats().sessions_lost, 1u);
  EXPECT_EQ(core_->Stats().sessions_stalled, 1u);
  EXPECT_THAT(Log(), testing::Contains(HasSubstr("its fair share is " + std::to_string(2 * kExpert))));
}

TEST_F(StalledSessionTest, StaysWhileItGivesSigns) {
  Hold(4);
  uint64_t step = 0;
  const auto lease_again = [&] {
    uint64_t place;
    a_->Release(ExpertExtentId(0, 0), StepStamp(++step, 0));
    ASSERT_TRUE(a_->Lease(ExpertExtentId(0, 0), &place));
  };
  EXPECT_EQ(AskFor(12, lease_again), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(2));
}

TEST_F(StalledSessionTest, StaysWithinItsShareOrWhenNobodyStarves) {
  Hold(2);
  EXPECT_EQ(AskFor(12), absl::StatusCode::kOk);
  clock_.Advance(60'000'000'000);
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(2));
}

TEST_F(StalledSessionTest, StaysWhenWhoStarvedNoLongerAsks) {
  Hold(4);
  EXPECT_EQ(AskFor(2), absl::StatusCode::kResourceExhausted);
  clock_.Advance(60'000'000'000);
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(2));
}

TEST_F(SessionEndTest, LeasesOfAKilledClientCountAsAUseNow) {
  Start(4 * kExpert);
  const uint64_t killed = OpenSession();
  LocalClient a = Client(killed);
  LocalClient b = Client(OpenSession());
  uint64_t place;
  for (uint32_t expert = 0; expert < 4; ++expert) {
    a.Submit(LocalClient::FillExpert(expert, 0, expert));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_TRUE(Next(&a));
    for (uint32_t part = 0; part < 3; ++part) {
      ASSERT_TRUE(a.Lease(ExpertExtentId(0, expert) + part, &place));
      if (expert != 0) {
        a.Release(ExpertExtentId(0, expert) + part, StepStamp(1 + expert, 0));
      }
    }
  }
  core_->OnProcessExit(killed);
  Pump();
  EXPECT_EQ(Ask(&b, 100), absl::StatusCode::kOk);
  EXPECT_TRUE(b.Resident(ExpertExtentId(0, 0))) << "the oldest, but in use when its client was killed";
  EXPECT_FALSE(b.Resident(ExpertExtentId(0, 1)));
  EXPECT_TRUE(b.Resident(ExpertExtentId(0, 2)));
}

TEST_F(SessionEndTest, OpenRefusesWithNumbersBeyondTheBudget) {
  Start(6 * kExpert + 4096, {.dense = {4096, 4096}, .layers = 4, .experts = 8, .part_bytes = kPart});
  EXPECT_EQ(core_->OpenSession(Params(3)).status().code(), absl::StatusCode::kResourceExhausted);
  OpenSession(1);
  OpenSession(1);
  const absl::Status refused = core_->OpenSession(Params(1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t number : {6 * kExpert + 4096, 6 * kExpert + 8192, 2 * kExpert, 4 * kExpert, uint64_t{8192}}) {
    EXPECT_THAT(refused.ToString(), HasSubstr(std::to_string(number)));
  }
}

TEST_F(SessionEndTest, OpenSessionChecksAbiPacksLayoutAndDraining) {
  Start(8 * kExpert);
  SessionParams params = Params();
  params.abi.pin_entry = 8;
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(core_->OpenSession(params).status().ToString(), HasSubstr("pin_entry"));
  params = Params();
  params.packs = {1};
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  params.packs = {0, 0};
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  params = Params();
  params.layout.ring_entries = 100;
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  core_->Drain();
  EXPECT_EQ(core_->OpenSession(Params()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionEndTest, PackBelowItsMinimumIsRefusedWithNumbers) {
  Start(8 * kExpert);
  auto source = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{
      .model_id = "feedfacefeedfacefeedfacefeedface", .dense = {7 * kExpert}, .part_bytes = kPart});
  const auto refused = core_->AddPack(std::move(source), {0});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().ToString(), HasSubstr(std::to_string(9 * kExpert)));
}

TEST_F(SessionEndTest, PinsOfALostSessionHoldUntilItsProcessEnds) {
  Start(6 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  LocalClient b = Client(OpenSession());
  for (uint32_t e = 0; e < 6; ++e) {
    a.Submit(LocalClient::FillExpert(e, 0, e));
  }
  Pump();
  reader_.CompleteAll();
  Pump();
  uint64_t place;
  for (uint32_t i = 0; i < 18; ++i) {
    ASSERT_TRUE(a.Lease(ExpertExtentId(0, 0) + i, &place));
  }
  a.Submit(LocalClient::FillExpert(50, 3, 3));
  core_->OnConnectionLost(first);
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(0)) << "no new work";
  EXPECT_EQ(Ask(&b, 1), absl::StatusCode::kResourceExhausted) << "its pins hold";
  EXPECT_EQ(core_->Stats().sessions[0].state, "lost");
  EXPECT_EQ(core_->Stats().sessions[0].held_extents, 18u);
  core_->OnProcessExit(first);
  EXPECT_EQ(Ask(&b, 2), absl::StatusCode::kOk);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
}

TEST_F(SessionEndTest, CloseReleasesPinsAndKeepsResidentExtents) {
  Start(4 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  HoldAll(&a);
  ASSERT_TRUE(core_->CloseSession(first).ok());
  EXPECT_EQ(core_->CloseSession(first).code(), absl::StatusCode::kNotFound);
  LocalClient b = Client(OpenSession());
  b.Submit(LocalClient::FillExpert(1, 0, 0));
  Pump();
  const auto warm = Next(&b);
  ASSERT_TRUE(warm);
  EXPECT_EQ(warm->bytes, 0u) << "a restart finds it warm";
}

TEST_F(SessionEndTest, EndedSessionDisturbsNoCoalescedRequest) {
  Start(8 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  LocalClient b = Client(OpenSession());
  a.Submit(LocalClient::FillExpert(1, 0, 0));
  a.Submit(LocalClient::FillExpert(2, 0, 1));
  b.Submit(LocalClient::FillExpert(1, 0, 0));
  Pump();
  ASSERT_TRUE(core_->CloseSession(first).ok());
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "what nobody else wants is dropped";
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&b)), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
}

TEST_F(SessionEndTest, GarbageInRegionsLosesOnlyThatSession) {
  Start(30 * kExpert);
  LocalClient good = Client(OpenSession());
  std::mt19937_64 random(5);
  int lost = 0;
  for (int round = 0; round < 200; ++round) {
    auto handle = core_->OpenSession(Params());
    ASSERT_TRUE(handle.ok()) << handle.status();
    const LocalSession bad = *core_->Local(handle->session);
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(bad.control.header);
    const uint64_t count = bad.control.layout.region_bytes() / 8;
    for (int i = 0; i < 200; ++i) {
      words[random() % count].store(random() % 4 == 0 ? random() % 70 : random());
    }
    for (uint32_t e = 0; e < bad.packs[0].extent_count; ++e) {
      bad.packs[0].pins[e].pins.store(static_cast<uint32_t>(random()));
      bad.packs[0].pins[e].last_step.store(random());
    }
    bad.control.cursors->submission_tail.value.store(random() % 80);
    Pump();
    reader_.CompleteAll();
    Pump();
    lost += core_->CloseSession(handle->session).ok() ? 0 : 1;
    Pump();
    good.Submit(LocalClient::FillExpert(1, 1, 1));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(&good)), absl::StatusCode::kOk);
  }
  EXPECT_GT(lost, 100);
  EXPECT_EQ(core_->Stats().sessions_lost, static_cast<uint64_t>(lost));
  EXPECT_EQ(core_->Stats().sessions_stalled, 0u);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_EQ(core_->Stats().sessions[0].outstanding, 0u);
}

TEST_F(SessionEndTest, PinsOfAMisbehavingSessionAreIgnoredAtOnce) {
  Start(4 * kExpert);
  LocalClient a = Client(OpenSession());
  LocalClient b = Client(OpenSession());
  HoldAll(&a);
  uint64_t place;
  b.Submit(LocalClient::FillExpert(1, 1, 0));
  b.Submit(LocalClient::FillExpert(2, 1, 1));
  Pump();
  reader_.CompleteAll();
  Pump();
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(b.Lease(ExpertExtentId(1, 0) + i, &place));
  }
  while (Next(&b)) {
  }
  EXPECT_EQ(Ask(&b, 3), absl::StatusCode::kResourceExhausted);
  a.session().control.cursors->completion_head.value.store(1'000'000);
  Pump();
  EXPECT_EQ(core_->Stats().sessions_lost, 1u);
  EXPECT_EQ(Ask(&b, 4), absl::StatusCode::kOk);
}

TEST_F(SessionEndTest, MoreOutstandingThanTheRingHoldsEndsTheSession) {
  Start(8 * kExpert);
  const uint64_t session = OpenSession();
  LocalClient client = Client(session);
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(client.Submit(LocalClient::Plain(i, Opcode::kNop)), RingResult::kOk);
  }
  Pump();
  EXPECT_EQ(client.Submit(LocalClient::Plain(64, Opcode::kNop)), RingResult::kOk) << "none was reaped";
  Pump();
  EXPECT_EQ(core_->CloseSession(session).code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionEndTest, AnEntryRewrittenAfterItWasTakenChangesNothing) {
  Start(8 * kExpert);
  LocalClient bad = Client(OpenSession());
  const LocalSession shared = bad.session();
  for (uint64_t i = 0; i < 16; ++i) {
    bad.Submit(LocalClient::FillExpert(i, 1, static_cast<uint32_t>(i % 2)));
    Pump();  // taken, and waiting for its reads
    auto* entries =
        reinterpret_cast<std::byte*>(shared.control.header) + shared.control.layout.submission_offset();
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(entries + i * sizeof(SubmissionEntry));
    for (size_t w = 0; w < sizeof(SubmissionEntry) / 8; ++w) {
      words[w].store(0xffffffffffffffff - w * i);
    }
    reader_.CompleteAll();
    Pump();
    const auto done = Next(&bad);
    ASSERT_EQ(CodeOf(done), absl::StatusCode::kOk);
    EXPECT_EQ(done->id, i);
  }
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
  EXPECT_EQ(core_->Stats().resident_extents, 6u) << "what was asked for at first, and nothing else";
}

TEST_F(SessionEndTest, OutOfRangeIndicesAreAnsweredOnly) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  std::mt19937_64 random(6);
  const uint32_t edges[] = {8, 64, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  uint64_t id = 0;
  for (uint32_t value : edges) {
    SubmissionEntry entry = LocalClient::FillExpert(++id, value, 0);
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, value);
    client.Submit(entry);
    entry = LocalClient::FillExtent(++id, value == 8 || value == 64 ? 96 + value : value);
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.pack = value;
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.progress = value == 8 || value == 64 ? 100000 : value & 0xfffffffe;
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.list_offset = value;
    entry.list_count = value;
    client.Submit(entry);
    Pump();
    while (const auto done = Next(&client)) {
      EXPECT_NE(CodeOf(done), absl::StatusCode::kOk) << done->id;
      EXPECT_NE(done->field, EntryField::kNone) << done->id;
    }
  }
  EXPECT_THAT(reader_.waiting(), SizeIs(0));
  client.Submit(LocalClient::FillExpert(++id, 0, 0));
  Pump();
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
}

TEST_F(SessionEndTest, StalledReaperDelaysOnlyItsOwnRequests) {
  Start(12 * kExpert);
  SessionParams params = Params();
  params.quota_bytes = 4 * kExpert;  // its unreaped extents stay below this
  LocalClient stopped = Client(core_->OpenSession(params)->session);
  LocalClient good = Client(OpenSession());
  for (uint64_t i = 0; i < 32; ++i) {
    stopped.Submit(LocalClient::FillExpert(i, static_cast<uint32_t>(i / 8), static_cast<uint32_t>(i % 8)));
    Pump();
    reader_.CompleteAll();
    Pump();
  }
  for (uint64_t i = 0; i < 64; ++i) {
    good.Submit(LocalClient::FillExpert(i, static_cast<uint32_t>(i % 4), static_cast<uint32_t>(i / 8)));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(&good)), absl::StatusCode::kOk) << i;
  }
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
}

TEST_F(SessionEndTest, UnattachedSessionIsDropped) {
  attach_timeout_nanos_ = 1'000'000'000;
  Start(8 * kExpert);
  OpenSession();
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_NE(core_->NextDeadline(), 0);
  clock_.Advance(1'000'000'000);
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(0));
}

}  // namespace
}  // namespace sluice::weightd
