// Every number of GetStats beside what happened: each event of a test says which numbers change and by how
// much, and all others must stay as they were. tests/weightd/daemon compares GetStats with /metrics.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/weightd/engine/transfer_fixture.h"
#include "weightd/engine/store_stats.h"

namespace sluice::weightd {
namespace {

constexpr int64_t kSlow = 1'000'000'000;

class CountersTest : public TransferSessionTest {
 protected:
  // Numbers that changed since the last call, as signed differences. Those of the segments are compared with
  // the mapped segments instead.
  using Changes = std::map<std::string, int64_t>;
  Changes Changed() {
    const StoreStats now = core_->Stats();
    Changes changed;
    const auto note = [&changed](const char* name, uint64_t before, uint64_t value) {
      if (value != before) {
        changed[name] = static_cast<int64_t>(value - before);
      }
    };
    for (const StoreCounter& counter : kStoreCounters) {
      note(counter.field, before_.*counter.value, now.*counter.value);
    }
    note("queued demands", before_.queued_demand, now.queued_demand);
    note("queued prefetches", before_.queued_prefetch, now.queued_prefetch);
    const auto mapped = core_->tier().arena().Mapped();
    uint64_t bytes = 0;
    for (const auto& [number, memory] : mapped) {
      bytes += memory->map.bytes();
    }
    EXPECT_EQ(now.segments, mapped.size());
    EXPECT_EQ(now.segment_bytes, bytes);
    changed.erase("segments");
    changed.erase("segment_bytes");
    before_ = now;
    return changed;
  }
  // A core with memory for `experts`, and what it counts before the first client.
  void StartEmpty(uint32_t experts) {
    Start(experts * kExpert);
    EXPECT_EQ(Changed(), (Changes{{"dram_budget_bytes", experts * kExpert}}));
  }
  static SubmissionEntry Fill(uint64_t id, uint32_t layer, uint32_t expert,
                              RequestClass request_class = RequestClass::kDemand) {
    SubmissionEntry entry = LocalClient::FillExpert(id, layer, expert);
    entry.request_class = request_class;
    return entry;
  }
  void Complete(LocalClient* client) {
    reader_.CompleteAll();
    Pump();
    while (Next(client)) {
    }
    Pump();  // what was reaped is let go
  }
  // Numbers of a fill of `experts` that the disk gave.
  static Changes Filled(int64_t experts, Changes others = {}) {
    others["fills"] += 3 * experts;
    others["bytes_read"] += experts * static_cast<int64_t>(kExpert);
    others["resident_extents"] += 3 * experts;
    others["resident_bytes"] += experts * static_cast<int64_t>(kExpert);
    return others;
  }

  StoreStats before_;
};

TEST_F(CountersTest, ReadsJoinedReadsAndExtentsInMemory) {
  StartEmpty(8);
  Peer a = Join();
  Peer b = Join();
  a.client->Submit(Fill(1, 0, 0));
  b.client->Submit(Fill(1, 0, 0));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 2}, {"joined", 3}, {"in_flight_bytes", kExpert}}));
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(Changed(), Filled(1, {{"in_flight_bytes", -static_cast<int64_t>(kExpert)}}));
  a.client->Submit(Fill(2, 0, 0));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"resident_requests", 1}}));
  uint64_t place = 0;
  for (const Peer* peer : {&a, &b}) {
    for (uint32_t extent = 0; extent < 2; ++extent) {
      ASSERT_TRUE(peer->client->Lease(ExpertExtentId(0, 0) + extent, &place));
    }
  }
  const StoreStats stats = core_->Stats();
  ASSERT_EQ(stats.sessions.size(), 2u);
  for (const SessionStats& session : stats.sessions) {
    EXPECT_EQ(session.requests, session.session == a.session ? 2u : 1u);
    EXPECT_EQ(session.bytes_read, session.session == a.session ? kExpert : 0) << "who asked first pays";
    EXPECT_EQ(session.outstanding, 0u);
    EXPECT_EQ(session.held_extents, 2u);
    EXPECT_EQ(session.held_bytes, 2 * kPart);
  }
}

TEST_F(CountersTest, PrefetchesUsedEvictedAndOvertaken) {
  StartEmpty(4);
  Peer peer = Join();
  peer.client->Submit(Fill(1, 0, 0, RequestClass::kPrefetch));
  peer.client->Submit(Fill(2, 0, 1, RequestClass::kPrefetch));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"prefetch_requests", 2}, {"in_flight_bytes", 2 * kExpert}}));
  Complete(peer.client.get());
  EXPECT_EQ(Changed(), Filled(2, {{"in_flight_bytes", -static_cast<int64_t>(2 * kExpert)}}));
  peer.client->Submit(Fill(3, 0, 0));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"resident_requests", 1}, {"prefetch_useful", 3}}));
  uint64_t place = 0;
  ASSERT_TRUE(peer.client->Lease(ExpertExtentId(0, 1), &place)) << "a use without a message";
  peer.client->Release(ExpertExtentId(0, 1), StepStamp(1, 0));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"prefetch_useful", 1}}));
  while (Next(peer.client.get())) {
  }
  // Four other experts evict all; two extents of the second prefetch were never used.
  for (uint32_t expert = 0; expert < 4; ++expert) {
    peer.client->Submit(Fill(10 + expert, 1, expert));
    Pump();
    Complete(peer.client.get());
  }
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 4},
                                {"fills", 12},
                                {"bytes_read", 4 * kExpert},
                                {"evictions", 6},
                                {"prefetch_wasted", 2},
                                {"resident_extents", 6},
                                {"resident_bytes", 2 * kExpert}}));
}

TEST_F(CountersTest, CancelledRequestsWaitingOrBeingRead) {
  constexpr uint64_t kLarge = 8 * 1024 * 1024;
  Start(12 * 3 * kLarge, {.layers = 2, .experts = 8, .part_bytes = kLarge});
  const uint64_t session = OpenSession();
  LocalClient client = Client(session);
  client.Submit(Fill(1, 0, 0, RequestClass::kPrefetch));
  Pump();
  Changed();
  for (uint32_t expert = 1; expert < 5; ++expert) {
    client.Submit(Fill(1 + expert, 0, expert, RequestClass::kPrefetch));
  }
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"prefetch_requests", 4}, {"queued prefetches", 4}}));
  client.Submit(Cancel(20, 2));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"cancelled", 1}, {"queued prefetches", -1}}));
  client.Submit(Cancel(21, 2));
  Pump();
  EXPECT_EQ(Changed(), Changes{}) << "it is no longer there";
  SubmissionEntry all = LocalClient::Plain(22, Opcode::kCancelPrefetches);
  all.step = 9;
  client.Submit(all);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"cancelled", 3}, {"queued prefetches", -3}}));
  client.Submit(Cancel(23, 1));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"cancelled", 1}, {"in_flight_bytes", -static_cast<int64_t>(3 * kLarge)}}));
  EXPECT_EQ(core_->Stats().sessions[0].outstanding, 0u);
}

TEST_F(CountersTest, DemandsThatWaitForTheirTurn) {
  constexpr uint64_t kLarge = 16 * 1024 * 1024;
  Start(5 * 3 * kLarge, {.layers = 2, .experts = 4, .part_bytes = kLarge});
  const uint64_t session = OpenSession();
  LocalClient client = Client(session);
  client.Submit(Fill(1, 0, 0));
  client.Submit(Fill(2, 0, 1));
  client.Submit(Fill(3, 0, 2));
  Pump();
  EXPECT_EQ(core_->Stats().queued_demand, 2u);
  EXPECT_EQ(core_->Stats().sessions[0].outstanding, 3u);
  Changed();
  core_->OnProcessExit(session);
  Pump();
  EXPECT_EQ(Changed(),
            (Changes{{"queued demands", -2}, {"in_flight_bytes", -static_cast<int64_t>(3 * kLarge)}}))
      << "a killed client cancels nothing, and leaves nothing";
}

TEST_F(CountersTest, RequestsWithoutRoom) {
  StartEmpty(4);
  Peer peer = Join();
  uint64_t place = 0;
  for (uint32_t expert = 0; expert < 4; ++expert) {
    peer.client->Submit(Fill(expert, 0, expert));
  }
  Pump();
  Complete(peer.client.get());
  for (uint32_t extent = 0; extent < 12; ++extent) {
    ASSERT_TRUE(peer.client->Lease(ExpertExtentId(0, 0) + extent, &place));
  }
  Changed();
  peer.client->Submit(Fill(10, 1, 0));
  Pump();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"no_room", 1}}));
}

TEST_F(CountersTest, FailedAndDamagedReads) {
  StartEmpty(4);
  Peer peer = Join();
  peer.client->Submit(LocalClient::FillExtent(1, 4));
  Pump();
  reader_.CompleteAs(4, ReadOutcome::kIoError, absl::DataLossError("EIO"));
  Pump();
  EXPECT_EQ(Changed(),
            (Changes{{"demand_requests", 1}, {"in_flight_bytes", kPart}, {"io_errors", 1}, {"rereads", 1}}));
  reader_.CompleteAs(4, ReadOutcome::kEndOfFile, absl::DataLossError("the file ends"));
  Pump();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Changed(), (Changes{{"io_errors", 1}, {"in_flight_bytes", -static_cast<int64_t>(kPart)}}));
  peer.client->Submit(LocalClient::FillExtent(2, 5));
  Pump();
  for (int read = 0; read < 2; ++read) {
    reader_.CompleteAs(5, ReadOutcome::kCorrupt, absl::DataLossError("wrong checksum"));
    Pump();
  }
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Changed(),
            (Changes{{"demand_requests", 1}, {"checksum_failures", 2}, {"rereads", 1}, {"bad_extents", 1}}));
  peer.client->Submit(LocalClient::FillExtent(3, 5));
  Pump();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}})) << "without another read";
}

TEST_F(CountersTest, SlowHedgedAndTimedOutReads) {
  StartEmpty(8);
  reader_.IgnoreCancels();
  Peer peer = Join();
  peer.client->Submit(LocalClient::FillExtent(1, 3));
  Pump();
  clock_.Advance(kSlow);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"slow_reads", 1}, {"second_reads", 1}}))
      << "a slow read no longer counts as in flight";
  const std::vector<uint64_t> waiting = reader_.waiting();
  ASSERT_EQ(waiting.size(), 2u);
  reader_.Complete(waiting[1]);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"fills", 1},
                                {"bytes_read", kPart},
                                {"second_reads_won", 1},
                                {"resident_extents", 1},
                                {"resident_bytes", kPart}}));
  reader_.Complete(waiting[0]);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"bytes_read", kPart}})) << "its bytes came from the disk, and fill nothing";
  peer.client->Submit(LocalClient::FillExtent(2, 4));
  Pump();
  clock_.Advance(kSlow);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"slow_reads", 1}, {"second_reads", 1}}));
  clock_.Advance(3 * kSlow);
  Pump();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << "the first request";
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Changed(), (Changes{{"timed_out", 1}}));
}

TEST_F(CountersTest, TransfersDoneWaitingAndCancelled) {
  StartEmpty(8);
  Peer peer = Join(MakeLinkRate(1, 0));
  EXPECT_EQ(core_->Stats().slab_bytes[0], 8 * kExpert);
  peer.client->Submit(Transfer(1, 0, 0));
  Settle();
  Read();
  EXPECT_EQ(Changed(), Filled(1, {{"demand_requests", 1}, {"transfers_waiting", 1}}));
  Arrivals();
  EXPECT_TRUE(Holds(peer, 0, 0));
  EXPECT_EQ(Changed(), (Changes{{"transfers", 1}, {"link_bytes", kExpert}, {"transfers_waiting", -1}}));
  peer.client->Submit(Transfer(2, 0, 1, kExpert));
  Settle();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"in_flight_bytes", kExpert}}));
  peer.client->Submit(Cancel(3, 2));
  Settle();
  EXPECT_EQ(Changed(), (Changes{{"cancelled", 1}, {"in_flight_bytes", -static_cast<int64_t>(kExpert)}}))
      << "nothing was to be copied yet";
  peer.client->Submit(Prefetch(4, 1, 0, 0, 0));
  Settle();  // its first chunk travels
  peer.client->Submit(Prefetch(5, 1, 0, 0, kExpert));
  Settle();
  EXPECT_EQ(Changed(),
            (Changes{{"prefetch_requests", 2}, {"resident_requests", 2}, {"transfers_waiting", 2}}));
  peer.client->Submit(Cancel(6, 5));
  Arrivals();
  EXPECT_EQ(
      Changed(),
      (Changes{
          {"transfers", 2}, {"transfers_cancelled", 1}, {"link_bytes", kExpert}, {"transfers_waiting", -2}}));
}

TEST_F(CountersTest, ScrubbedBytesAndPasses) {
  StartEmpty(8);
  Peer peer = Join();
  peer.client->Submit(Fill(1, 0, 0));
  Pump();
  Complete(peer.client.get());
  Changed();
  core_->Tune({.scrub_rate = 1 << 30});
  const auto scrub = [this] {
    clock_.Advance(kSlow);
    auto chunk = core_->TakeScrub();
    ASSERT_TRUE(chunk.has_value());
    core_->FinishScrub(*chunk, chunk->Verify());
  };
  for (int extent = 0; extent < 3; ++extent) {
    scrub();
  }
  EXPECT_EQ(Changed(), (Changes{{"scrub_bytes", kExpert}}));
  scrub();
  EXPECT_EQ(Changed(), (Changes{{"scrub_bytes", kPart}, {"scrub_passes", 1}}));
}

TEST_F(CountersTest, SessionThatMisbehavesIsLost) {
  StartEmpty(4);
  Peer peer = Join();
  peer.client->Submit(Fill(1, 0, 0));
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"demand_requests", 1}, {"in_flight_bytes", kExpert}}));
  peer.client->session().control.cursors->submission_tail.value.store(1'000'000);
  Pump();
  EXPECT_EQ(Changed(), (Changes{{"sessions_lost", 1}, {"in_flight_bytes", -static_cast<int64_t>(kExpert)}}));
  EXPECT_TRUE(core_->Stats().sessions.empty());
}

}  // namespace
}  // namespace sluice::weightd
