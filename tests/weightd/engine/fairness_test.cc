// Several sessions: fair order of requests, the bytes that go ahead of a demand, quotas, and clients that do
// not unmap retired segments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <string>

#include "common/protocol/side_channel.h"
#include "tests/weightd/engine/core_fixture.h"
#include "weightd/store/fair_queue.h"
#include "weightd/store/read_queue.h"

namespace sluice::weightd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kMiB = 1024 * 1024;

TEST(FairQueueTest, SessionsTakeTurnsByBytesNotByQueueLength) {
  FairQueue<int> queue;
  for (int i = 0; i < 100; ++i) {
    queue.PushBack(1, 1000 + i);
  }
  for (int i = 0; i < 4; ++i) {
    queue.PushBack(2, 2000 + i);
  }
  // Session 1's cost twice as much: two of session 2 to one of session 1.
  std::vector<int> order;
  for (int i = 0; i < 7; ++i) {
    order.push_back(queue.Front());
    queue.PopFront(queue.Front() < 2000 ? 2 * kMiB : kMiB);
  }
  EXPECT_THAT(order, ElementsAre(1000, 2000, 2001, 1001, 2002, 2003, 1002));
  EXPECT_EQ(queue.size(), 97u);
}

TEST(FairQueueTest, IdleTimeIsNoClaimAndDropLeavesNothing) {
  FairQueue<int> queue;
  for (int i = 0; i < 10; ++i) {
    queue.PushBack(1, 10 + i);
  }
  for (int i = 0; i < 8; ++i) {
    queue.PopFront(kMiB);
  }
  for (int i = 0; i < 3; ++i) {
    queue.PushBack(2, 20 + i);  // was idle so far: next, but not three times
  }
  std::vector<int> order;
  while (!queue.empty()) {
    order.push_back(queue.Front());
    queue.PopFront(kMiB);
  }
  EXPECT_THAT(order, ElementsAre(20, 18, 21, 19, 22));
  queue.PushBack(3, 30);
  queue.PushFront(3, 29);
  queue.PushBack(4, 40);
  queue.RemoveIf(3, [](int item) { return item == 30; });
  EXPECT_EQ(queue.size(), 2u);
  queue.Drop(3);
  EXPECT_EQ(queue.Front(), 40);
  EXPECT_EQ(queue.size(), 1u);
}

// An engine's queue without its threads: chunks start as the limits allow, and end one by one.
class SteppedReader final : public BlockReader {
 public:
  absl::StatusOr<int> Register(const std::string&) override { return 0; }
  void SetSink(std::function<void(ReadResult)> sink) override { sink_ = std::move(sink); }
  void Submit(ReadJob job) override { queue_.Add(std::move(job)); }
  void Promote(uint64_t tag) override { queue_.Promote(tag); }
  void Cancel(uint64_t tag) override { Report(queue_.Cancel(tag)); }
  std::string Describe() const override { return "stepped"; }

  // Starts chunks within the limits; returns the bytes that are being read.
  uint64_t StartedBytes() {
    while (auto chunk = queue_.Next()) {
      running_.push_back(*std::move(chunk));
    }
    return queue_.in_flight_bytes();
  }

  // The same, and ends the chunk started first; returns its tag and bytes. False: nothing to do.
  bool Step(uint64_t* tag, uint64_t* bytes) {
    StartedBytes();
    if (running_.empty()) {
      return false;
    }
    const ReadChunk chunk = running_.front();
    running_.pop_front();
    *tag = chunk.read->job.tag;
    *bytes = chunk.length;
    FakeExtentSource::FillBytes(chunk.read->job.offset + chunk.offset,
                                {chunk.read->job.dest + chunk.offset, chunk.length});
    queue_.Landed(chunk, 0);
    Report(queue_.Finish(chunk, ReadOutcome::kOk, absl::OkStatus(), chunk.length, 0));
    return true;
  }

 private:
  void Report(const std::shared_ptr<QueuedRead>& over) {
    if (over != nullptr) {
      ReadResult result;
      result.tag = over->job.tag;
      result.outcome = over->outcome;
      result.bytes_read = over->bytes_read;
      sink_(std::move(result));
    }
  }
  ReadQueue queue_{ReadLimits()};
  std::deque<ReadChunk> running_;
  std::function<void(ReadResult)> sink_;
};

class FairnessTest : public CoreTest {
 protected:
  static SubmissionEntry Prefetch(uint64_t id, uint32_t expert) {
    SubmissionEntry entry = LocalClient::FillExpert(id, expert / 8, expert % 8);
    entry.request_class = RequestClass::kPrefetch;
    return entry;
  }
  // The experts of layer `layer` and above that are being read, in the order of their reads.
  std::vector<uint32_t> Started() {
    std::vector<uint32_t> experts;
    for (uint64_t tag : reader_.waiting()) {
      const auto expert = static_cast<uint32_t>(tag / 3);
      if (experts.empty() || experts.back() != expert) {
        experts.push_back(expert);
      }
    }
    return experts;
  }
};

TEST_F(FairnessTest, DemandWaitsOnlyForPrefetchesInFlight) {
  SteppedReader reader;
  other_reader_ = &reader;
  constexpr uint64_t kPartBytes = kMiB / 2;
  Start(200 * 3 * kPartBytes, {.layers = 16, .experts = 8, .part_bytes = kPartBytes});
  LocalClient flood = Client(OpenSession());
  LocalClient client = Client(OpenSession());
  uint64_t id = 0;
  uint64_t most = 0;
  for (uint32_t round = 0; round < 20; ++round) {
    for (int i = 0; i < 3; ++i) {
      ++id;
      flood.Submit(Prefetch(id, 20 + static_cast<uint32_t>(id) % 100));
    }
    uint64_t tag;
    uint64_t bytes;
    for (uint32_t i = 0; i < round; ++i) {
      Pump();
      reader.Step(&tag, &bytes);
    }
    client.Submit(LocalClient::FillExpert(round, round / 8, round % 8));
    uint64_t ahead = 0;
    std::optional<CompletionEntry> done;
    while (!(done = Next(&client)).has_value()) {
      Pump();
      ASSERT_TRUE(reader.Step(&tag, &bytes));
      Pump();
      ahead += tag / 3 == round ? 0 : bytes;
    }
    EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
    most = std::max(most, ahead);
    while (Next(&flood)) {
    }
  }
  std::printf("most bytes that went ahead of a demand of %.1f MiB: %.2f MiB\n", 3.0 * kPartBytes / kMiB,
              static_cast<double>(most) / kMiB);
  EXPECT_LE(most, 2 * kMiB);
  EXPECT_GT(most, 0u) << "no flood: the test shows nothing";
}

TEST_F(FairnessTest, OnlyASoleSessionReadsFourMiBAhead) {
  SteppedReader reader;
  other_reader_ = &reader;
  Start(40 * 3 * kMiB, {.layers = 2, .experts = 8, .part_bytes = 2 * kMiB});
  LocalClient client = Client(OpenSession());
  client.Submit(Prefetch(1, 1));
  Pump();
  EXPECT_EQ(reader.StartedBytes(), 4 * kMiB);
  uint64_t tag;
  uint64_t bytes;
  while (reader.Step(&tag, &bytes)) {
  }
  OpenSession();
  client.Submit(Prefetch(2, 2));
  Pump();
  EXPECT_EQ(reader.StartedBytes(), 2 * kMiB);
}

TEST_F(FairnessTest, DemandSkipsTheQueueOfAnotherSession) {
  Start(200 * 3 * kMiB, {.layers = 16, .experts = 8, .part_bytes = kMiB});
  LocalClient many = Client(OpenSession());
  LocalClient one = Client(OpenSession());
  for (uint32_t e = 0; e < 60; ++e) {
    many.Submit(LocalClient::FillExpert(e, e / 8, e % 8));
  }
  Pump();
  const std::vector<uint32_t> running = Started();
  EXPECT_LE(running.size() * 3 * kMiB, 32 * kMiB);
  one.Submit(LocalClient::FillExpert(1, 15, 0));
  one.Submit(LocalClient::FillExpert(2, 15, 1));
  Pump();
  for (uint64_t part = 0; part < 3; ++part) {
    reader_.Complete(running[0] * 3 + part);
  }
  Pump();
  EXPECT_EQ(Started().back(), 120u) << "the first that starts";
  for (uint64_t part = 0; part < 6; ++part) {
    reader_.Complete(running[1] * 3 + part);
  }
  Pump();
  const std::vector<uint32_t> now = Started();
  EXPECT_THAT(std::vector<uint32_t>(now.end() - 3, now.end()), ElementsAre(120, running.size(), 121))
      << "turn and turn about";
}

TEST_F(FairnessTest, PrefetchesOfTwoSessionsTakeTurns) {
  constexpr uint64_t kPartBytes = kMiB / 4;
  Start(200 * 3 * kPartBytes, {.layers = 16, .experts = 8, .part_bytes = kPartBytes});
  LocalClient flood = Client(OpenSession());
  LocalClient client = Client(OpenSession());
  for (uint32_t i = 0; i < 50; ++i) {
    flood.Submit(Prefetch(i, i));
  }
  Pump();
  for (uint32_t i = 0; i < 3; ++i) {
    client.Submit(Prefetch(i, 100 + i));
  }
  Pump();
  std::vector<uint32_t> started;
  for (int i = 0; i < 8; ++i) {
    const std::vector<uint32_t> running = Started();
    started.insert(started.end(), running.begin(), running.end());
    for (uint64_t part = 0; part < 3; ++part) {
      reader_.Complete(running[0] * 3 + part);
    }
    Pump();
  }
  int ours = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    ours += Next(&client).has_value() ? 1 : 0;
  }
  EXPECT_EQ(ours, 3) << "among the first eight, though 48 were before them";
}

TEST_F(FairnessTest, SessionBeyondItsQuotaEvictsOnlyItsOwn) {
  Start(10 * kExpert);
  LocalClient other = Client(OpenSession());
  for (uint32_t e = 0; e < 4; ++e) {
    other.Submit(LocalClient::FillExpert(e, 3, e));
  }
  Pump();
  reader_.CompleteAll();
  Pump();
  while (Next(&other)) {
  }
  SessionParams params = Params();
  params.quota_bytes = 3 * kExpert;
  const auto handle = core_->OpenSession(params);
  ASSERT_TRUE(handle.ok()) << handle.status();
  LocalClient client = Client(handle->session);
  for (uint32_t e = 0; e < 8; ++e) {
    client.Submit(LocalClient::FillExpert(e, 0, e));
    Pump();
    reader_.CompleteAll();
    Pump();
    EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
    for (const SessionStats& session : core_->Stats().sessions) {
      EXPECT_LE(session.charged_bytes, 3 * kExpert);
    }
  }
  for (uint32_t e = 0; e < 8; ++e) {
    EXPECT_EQ(client.Resident(ExpertExtentId(0, e)), e >= 5) << e << ": its own coldest went";
  }
  for (uint32_t e = 0; e < 4; ++e) {
    EXPECT_TRUE(other.Resident(ExpertExtentId(3, e)));
  }
  // Extents filled by the other session cost nothing.
  client.Submit(LocalClient::FillExpert(20, 3, 0));
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_TRUE(client.Resident(ExpertExtentId(0, 5)));
  // All of its quota is held: it has no room, though the memory has.
  uint64_t place;
  for (uint32_t i = 0; i < 9; ++i) {
    ASSERT_TRUE(client.Lease(ExpertExtentId(0, 5) + i, &place));
  }
  client.Submit(LocalClient::FillExpert(21, 1, 0));
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(core_->CloseSession(handle->session).ok());
  EXPECT_TRUE(other.Resident(ExpertExtentId(0, 5))) << "it stays, and belongs to nobody";
  for (uint32_t e = 0; e < 8; ++e) {
    other.Submit(LocalClient::FillExpert(100 + e, 1, e));
    Pump();
    reader_.CompleteAll();
    Pump();
    EXPECT_EQ(CodeOf(Next(&other)), absl::StatusCode::kOk);
  }
}

TEST_F(FairnessTest, QuotasBelowTheMinimumAreRefusedByName) {
  session_quota_ = 3 * kExpert;
  Start(20 * kExpert, {.dense = {kExpert}, .layers = 4, .experts = 8, .part_bytes = kPart});
  SessionParams params = Params();
  params.quota_bytes = 3 * kExpert - 1;
  absl::Status refused = core_->OpenSession(params).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.ToString(), HasSubstr(std::to_string(3 * kExpert - 1)));
  params.quota_bytes = 10 * kExpert;
  const auto handle = core_->OpenSession(params);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(core_->Stats().sessions[0].quota_bytes, 3 * kExpert) << "weightd's own bound counts";
  params.compute_threads = 2;
  refused = core_->OpenSession(params).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(), HasSubstr("--session-quota"));
}

// Two packs whose extents fit into each other's segments only badly, and a client that acknowledges nothing.
class SlowUnmapTest : public FairnessTest {
 protected:
  void StartTwo(uint64_t budget) {
    Start(budget, {.layers = 15, .experts = 8, .part_bytes = 100 * 1024});
    AddPack({.model_id = "feedfacefeedfacefeedfacefeedface",
             .layers = 1,
             .experts = 8,
             .part_bytes = 300 * 1024});
    SessionParams both = Params();
    both.packs = {0, 1};
    const auto slow = core_->OpenSession(both);
    ASSERT_TRUE(slow.ok()) << slow.status();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = UniqueFd(ends[1]);
    ASSERT_TRUE(core_->AttachSideSocket(slow->session, UniqueFd(ends[0])).ok());
    const auto quick = core_->OpenSession(both);
    ASSERT_TRUE(quick.ok()) << quick.status();
    quick_ = std::make_unique<LocalClient>(*core_->Local(quick->session));
  }
  std::optional<CompletionEntry> Fill(uint32_t pack, uint32_t expert) {
    SubmissionEntry entry = LocalClient::FillExpert(++id_, expert / 8, expert % 8);
    entry.pack = pack;
    quick_->Submit(entry);
    Pump();
    reader_.CompleteAll();
    Pump();
    return Next(quick_.get());
  }
  // Acknowledges the messages sent to the peer.
  void AnswerAll() {
    while (true) {
      auto packet = ReceiveSideMessage(peer_.get());
      if (!packet.ok()) {
        return;
      }
      if (packet->message.type == SideType::kSegmentRetired) {
        SideMessage ack;
        ack.type = SideType::kSegmentUnmapped;
        ack.segment = packet->message.segment;
        ASSERT_TRUE(SendSideMessage(peer_.get(), ack).ok());
        HandleEvents();
      }
    }
  }
  UniqueFd peer_;
  std::unique_ptr<LocalClient> quick_;
  uint64_t id_ = 0;
};

TEST_F(SlowUnmapTest, OthersWaitBrieflyOnceThenUseOtherRoom) {
  constexpr uint64_t kBudget = 320 * 100 * 1024;  // in segments of ten slots
  StartTwo(kBudget);
  for (uint32_t e = 0; e < 107; ++e) {
    ASSERT_EQ(CodeOf(Fill(0, e)), absl::StatusCode::kOk);
  }
  ASSERT_EQ(Fill(1, 0), std::nullopt) << "it waits for the segments that it emptied";
  EXPECT_GT(core_->Stats().retired_bytes, 0u);
  const int64_t deadline = core_->NextDeadline();
  EXPECT_LE(deadline - clock_.NowNanos(), 250'000'000);
  clock_.Advance(deadline - clock_.NowNanos());
  Pump();
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(quick_.get())), absl::StatusCode::kOk) << "in a segment of which much is wasted";
  const uint64_t retired = core_->Stats().retired_bytes;
  for (uint32_t round = 0; round < 4; ++round) {
    for (uint32_t e = 0; e < 8; ++e) {
      ASSERT_EQ(CodeOf(Fill(1, e)), absl::StatusCode::kOk) << "nobody waits any more";
      ASSERT_EQ(CodeOf(Fill(0, e)), absl::StatusCode::kOk);
    }
  }
  EXPECT_EQ(core_->Stats().retired_bytes, retired) << "no more is lost to the slow one";
  EXPECT_LE(core_->Stats().segment_bytes, kBudget);
  AnswerAll();
  EXPECT_EQ(core_->Stats().retired_bytes, 0u);
  for (uint32_t e = 0; e < 8; ++e) {
    ASSERT_EQ(CodeOf(Fill(1, e)), absl::StatusCode::kOk);
  }
}

}  // namespace
}  // namespace sluice::weightd
