// Transfers from the ring to the completion: fills, pins, coalescing, cancelling, lies, deaths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/weightd/engine/transfer_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::SizeIs;

TEST_F(TransferSessionTest, TransferFillsCopiesAndReleases) {
  Start(8 * kExpert);
  Peer peer = Join();
  peer.client->Submit(Transfer(1, 2, 3));
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  EXPECT_FALSE(Next(peer.client.get()));
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
  EXPECT_EQ(done->bytes, kExpert);
  EXPECT_EQ(done->link_bytes, kExpert);
  EXPECT_TRUE(Holds(peer, 2, 3));
  // Once more: from memory, and everything may be evicted for other experts.
  peer.client->Submit(Transfer(2, 2, 3, kExpert));
  Settle();
  EXPECT_EQ(Next(peer.client.get())->bytes, 0u);
  EXPECT_TRUE(Holds(peer, 2, 3, kExpert));
  for (uint32_t expert = 0; expert < 8; ++expert) {
    peer.client->Submit(Transfer(10 + expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << expert;
    EXPECT_TRUE(Holds(peer, 0, expert));
  }
  EXPECT_EQ(core_->Stats().transfers, 10u);
  EXPECT_EQ(core_->Stats().link_bytes, 10 * kExpert);
}

TEST_F(TransferSessionTest, WholeExtentIsCopiedAndReleased) {
  Start(8 * kExpert);
  Peer peer = Join();
  const uint32_t extent = ExpertExtentId(1, 2) + 1;
  const auto whole = [&](uint64_t id, uint64_t at) {
    SubmissionEntry entry = LocalClient::FillExtent(id, extent);
    entry.opcode = Opcode::kTransferExtent;
    entry.slab = kSlabNumber;
    entry.base[0] = at;
    return entry;
  };
  peer.client->Submit(whole(1, 4096));
  peer.client->Submit(whole(2, 4096));  // the very same: coalesced
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(1));
  Read();
  uint64_t link_bytes = 0;
  for (int i = 0; i < 2; ++i) {
    const auto done = Next(peer.client.get());
    EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
    link_bytes += done->link_bytes;
  }
  EXPECT_EQ(link_bytes, kPart);
  EXPECT_TRUE(source_->BytesAreRight(extent, {peer.memory.map.data() + 4096, kPart}));
  peer.client->Submit(whole(3, 8 * kExpert - kPart + 1));
  Settle();
  const auto beyond = Next(peer.client.get());
  EXPECT_EQ(CodeOf(beyond), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(beyond->field, EntryField::kBase);
  for (uint32_t expert = 0; expert < 8; ++expert) {
    peer.client->Submit(LocalClient::FillExpert(10 + expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << expert;
  }
  EXPECT_FALSE(peer.client->Resident(extent)) << "nothing holds it";
}

TEST_F(TransferSessionTest, TwoSessionsShareOneReadAndGetEachTheirOwnCopy) {
  Start(8 * kExpert);
  Peer a = Join();
  Peer b = Join(MakeLinkRate(1, 10));
  a.client->Submit(Transfer(1, 1, 1));
  b.client->Submit(Transfer(1, 1, 1, 4096));
  Settle();
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  Read();
  EXPECT_EQ(CodeOf(Next(a.client.get())), absl::StatusCode::kOk);
  EXPECT_FALSE(Next(b.client.get())) << "its link has not delivered yet";
  Arrivals();
  EXPECT_EQ(CodeOf(Next(b.client.get())), absl::StatusCode::kOk);
  EXPECT_TRUE(Holds(a, 1, 1));
  EXPECT_TRUE(Holds(b, 1, 1, 4096));
}

TEST_F(TransferSessionTest, SourcesStayWhileTheyAreCopied) {
  Start(3 * kExpert);
  Peer peer = Join(MakeLinkRate(0.001, 0));
  peer.client->Submit(Transfer(1, 0, 0));
  peer.client->Submit(Transfer(2, 0, 1, kExpert));
  Settle();
  Read();
  peer.client->Submit(LocalClient::FillExpert(3, 0, 2));
  Settle();
  Read();
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk);
  peer.client->Submit(LocalClient::FillExpert(4, 0, 3));
  peer.client->Submit(LocalClient::FillExpert(5, 0, 4));
  Settle();
  Read();
  Settle();
  EXPECT_TRUE(peer.client->Resident(ExpertExtentId(0, 0)));
  EXPECT_TRUE(peer.client->Resident(ExpertExtentId(0, 1)));
  Arrivals();
  EXPECT_TRUE(Holds(peer, 0, 0));
  EXPECT_TRUE(Holds(peer, 0, 1, kExpert));
}

TEST_F(TransferSessionTest, DemandCoalescesWithAndPromotesThePrefetch) {
  Start(20 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  // While it waits for the disk, and while it is copied.
  for (uint64_t round = 0; round < 2; ++round) {
    const uint64_t id = 10 * round;
    const auto expert = static_cast<uint32_t>(round);
    peer.client->Submit(Prefetch(id + 1, 1, 0, expert, 0));
    peer.client->Submit(Prefetch(id + 2, 1, 1, expert, kExpert));
    Settle();
    if (round == 1) {
      Read();
    }
    peer.client->Submit(Transfer(id + 3, 1, expert, kExpert));
    Settle();
    Read();
    Arrivals();
    std::vector<uint64_t> ids;
    uint64_t link_bytes = 0;
    while (const auto done = Next(peer.client.get())) {
      EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
      ids.push_back(done->id);
      link_bytes += done->link_bytes;
    }
    ASSERT_THAT(ids, SizeIs(3)) << "each completes once";
    if (round == 0) {
      EXPECT_EQ(ids.back(), id + 1) << "the prefetch that nobody waits for comes last";
    }
    EXPECT_EQ(link_bytes, 2 * kExpert) << "one copy serves both";
    EXPECT_TRUE(Holds(peer, 1, expert, kExpert));
  }
}

TEST_F(TransferSessionTest, StalePrefetchesEndUncopiedWhereverTheyAre) {
  Start(40 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  peer.client->Submit(Prefetch(1, 1, 0, 0, 0));
  Settle();
  Read();  // its first chunk travels
  peer.client->Submit(Prefetch(2, 1, 0, 1, kExpert));
  Settle();
  Read();  // waits for the link
  peer.client->Submit(Prefetch(3, 1, 0, 2, 2 * kExpert));
  Settle();  // is being read
  peer.client->Submit(Prefetch(4, 1, 2, 3, 3 * kExpert));
  Settle();  // of a later layer
  SubmissionEntry stale = LocalClient::Plain(5, Opcode::kCancelPrefetches);
  stale.step = 1;
  stale.layer = 1;
  peer.client->Submit(stale);
  Settle();
  Read();
  Arrivals();
  std::map<uint64_t, CompletionEntry> done;
  while (const auto next = Next(peer.client.get())) {
    done[next->id] = *next;
  }
  ASSERT_EQ(done.size(), 5u);
  EXPECT_EQ(done[5].bytes, 2u) << "as many as were cancelled";
  EXPECT_EQ(done[1].code, static_cast<uint16_t>(absl::StatusCode::kOk)) << "it had begun";
  EXPECT_EQ(done[2].code, static_cast<uint16_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(done[3].code, static_cast<uint16_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(done[3].link_bytes, 0u);
  EXPECT_EQ(done[4].code, static_cast<uint16_t>(absl::StatusCode::kOk));
}

TEST_F(TransferSessionTest, CancelEndsOneRequestInEveryState) {
  Start(40 * kExpert);
  Peer peer = Join(MakeLinkRate(1, 0));
  peer.client->Submit(Transfer(1, 0, 0));
  Settle();
  peer.client->Submit(Cancel(2, 1));  // being read
  Settle();
  EXPECT_EQ(Next(peer.client.get())->id, 1u);
  EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk);
  peer.client->Submit(Transfer(3, 0, 1));
  peer.client->Submit(Transfer(4, 0, 2, kExpert));
  Settle();
  Read();
  peer.client->Submit(Cancel(5, 4));
  peer.client->Submit(Cancel(6, 77));
  Settle();
  Arrivals();
  std::map<uint64_t, absl::StatusCode> codes;
  while (const auto next = Next(peer.client.get())) {
    codes[next->id] = CodeOf(next);
  }
  EXPECT_EQ(codes[3], absl::StatusCode::kOk);
  EXPECT_EQ(codes[6], absl::StatusCode::kNotFound);
  EXPECT_TRUE(codes.contains(4));
  EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
}

TEST_F(TransferSessionTest, ListIsReadOnceAndFalseFieldsAreNamed) {
  Start(8 * kExpert);
  Peer peer = Join();
  auto* list = peer.client->session().control.list;
  const std::vector<uint32_t> neurons = {0, 3, 4, 5, kWidth - 1};
  for (size_t i = 0; i < neurons.size(); ++i) {
    list[100 + i] = neurons[i];
  }
  SubmissionEntry entry = Transfer(1, 0, 0);
  entry.list_offset = 100;
  entry.list_count = static_cast<uint32_t>(neurons.size());
  peer.client->Submit(entry);
  Settle();
  for (size_t i = 0; i < neurons.size(); ++i) {
    list[100 + i] = 0xffffffff;  // too late to matter
  }
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kOk);
  EXPECT_EQ(done->link_bytes, neurons.size() * kRowBytes * 3);
  for (uint64_t part = 0; part < kPartCount; ++part) {
    for (size_t i = 0; i < neurons.size(); ++i) {
      EXPECT_TRUE(source_->BytesAreRight(ExpertExtentId(0, 0) + static_cast<uint32_t>(part),
                                         {peer.memory.map.data() + part * kPart + i * kRowBytes, kRowBytes},
                                         neurons[i] * kRowBytes));
    }
  }
  entry.id = 2;
  peer.client->Submit(entry);  // the list is nonsense by now
  entry.id = 3;
  entry.list_offset = peer.client->session().control.layout.list_entries - 1;
  peer.client->Submit(entry);  // and this one ends behind the arena
  SubmissionEntry beyond = Transfer(4, 0, 0, 8 * kExpert - kExpert + 1);
  peer.client->Submit(beyond);
  Settle();
  for (EntryField field : {EntryField::kList, EntryField::kList, EntryField::kStride}) {
    const auto refused = Next(peer.client.get());
    EXPECT_EQ(CodeOf(refused), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused->field, field);
  }
}

TEST_F(TransferSessionTest, DeathDuringACopyStopsItAndFreesAll) {
  Start(4 * kExpert);
  Peer victim = Join(MakeLinkRate(0.0001, 0));
  Peer other = Join();
  victim.client->Submit(Transfer(1, 0, 0));
  victim.client->Submit(Prefetch(2, 1, 0, 1, kExpert));
  Settle();
  Read();
  EXPECT_NE(engine_.NextArrival(), 0) << "chunks are on their way";
  core_->OnConnectionLost(victim.session);
  core_->OnProcessExit(victim.session);
  Settle();
  EXPECT_FALSE(slabs_[0].expired()) << "while something may still be written";
  Arrivals();
  EXPECT_TRUE(slabs_[0].expired());
  EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
  for (uint32_t expert = 2; expert < 6; ++expert) {
    other.client->Submit(Transfer(expert, 0, expert));
    Settle();
    Read();
    EXPECT_EQ(CodeOf(Next(other.client.get())), absl::StatusCode::kOk) << "its sources are free again";
  }
}

TEST_F(TransferSessionTest, PrefetchesPinAtMostAQuarterOfTheMemory) {
  Start(8 * kExpert);
  Peer peer = Join(MakeLinkRate(0.0001, 0));
  for (uint32_t expert = 0; expert < 4; ++expert) {
    peer.client->Submit(Prefetch(1 + expert, 1, 0, expert, expert * kExpert));
    Settle();
    Read();
  }
  for (uint64_t id : {3, 4}) {
    const auto refused = Next(peer.client.get());
    EXPECT_EQ(CodeOf(refused), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(refused->id, id);
  }
  peer.client->Submit(Transfer(9, 1, 0, 5 * kExpert));
  Settle();
  Read();
  Arrivals();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk) << "a demand is not bounded by it";
  }
}

TEST_F(TransferSessionTest, AFailedFillIsTheTransfersFailure) {
  Start(8 * kExpert);
  Peer peer = Join();
  peer.client->Submit(Transfer(1, 0, 0));
  Settle();
  for (int attempt = 0; attempt < 2; ++attempt) {
    reader_.CompleteAs(ExpertExtentId(0, 0) + 1, ReadOutcome::kCorrupt, absl::DataLossError("flipped"));
    Settle();
  }
  Read();
  const auto done = Next(peer.client.get());
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kDataLoss);
  EXPECT_EQ(done->extent, ExpertExtentId(0, 0) + 1);
  EXPECT_EQ(done->link_bytes, 0u);
}

// Two clients, everything at random, many seeds: each request completes once, rows of an OK completion are
// right, and nothing is left pinned.
TEST_F(TransferSessionTest, EveryRequestEndsOnceUnderRandomTraffic) {
  Start(12 * kExpert);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Peer> peers;
    peers.push_back(Join());
    peers.push_back(Join(MakeLinkRate(2, 10)));
    std::map<uint64_t, SubmissionEntry> open[2];
    uint64_t id = 0;
    const auto reap = [&](size_t p) {
      while (const auto done = Next(peers[p].client.get())) {
        auto found = open[p].find(done->id);
        ASSERT_NE(found, open[p].end()) << "seed " << seed;
        const SubmissionEntry entry = found->second;
        open[p].erase(found);
        if (entry.opcode == Opcode::kTransfer && CodeOf(done) == absl::StatusCode::kOk) {
          ASSERT_TRUE(Holds(peers[p], entry.layer, entry.expert, entry.base[0])) << "seed " << seed;
        }
      }
    };
    for (int event = 0; event < 300; ++event) {
      const size_t p = random() % 2;
      const uint64_t dice = random() % 10;
      SubmissionEntry entry;
      if (dice < 5 && open[p].size() < 30) {
        // Each place belongs to one expert, so that equal targets are equal rows.
        const auto expert = static_cast<uint32_t>(random() % 8);
        entry = Prefetch(++id, random() % 4, 1, expert, expert * kExpert);
        entry.request_class = random() % 2 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch;
      } else if (dice == 5) {
        ++id;
        entry = Cancel(id, 1 + random() % id);
      } else if (dice == 6) {
        entry = LocalClient::Plain(++id, Opcode::kCancelPrefetches);
        entry.step = random() % 4;
        entry.layer = 1;
      } else if (dice == 7) {
        reader_.CompleteAll();
        continue;
      } else {
        clock_.Advance(static_cast<int64_t>(random() % 100'000));
        Settle();
        reap(p);
        continue;
      }
      open[p][entry.id] = entry;
      peers[p].client->Submit(entry);
      if (random() % 2 == 0) {
        Pump();
      }
    }
    for (int i = 0; i < 50; ++i) {
      Read();
      Arrivals();
      reap(0);
      reap(1);
    }
    EXPECT_TRUE(open[0].empty() && open[1].empty()) << "seed " << seed;
    EXPECT_EQ(core_->Stats().transfers_waiting, 0u);
    core_->OnProcessExit(peers[0].session);
    core_->OnProcessExit(peers[1].session);
    Settle();
  }
}

// Passes over twice as many experts as fit, as a long prompt makes them, and how many the last one finds in
// memory.
class ScanFlagTest : public TransferSessionTest, public ::testing::WithParamInterface<Opcode> {
 protected:
  uint64_t HitsOfTheLastPass(uint32_t flags) {
    Start(16 * kExpert, {.layers = 4, .experts = 8, .part_bytes = kPart});
    const Peer peer = Join();
    uint64_t id = 0;
    uint64_t before = 0;
    for (uint64_t step = 1; step <= 4; ++step) {
      before = core_->Stats().resident_requests;
      for (uint32_t expert = 0; expert < 32; ++expert) {
        SubmissionEntry entry = GetParam() == Opcode::kTransfer
                                    ? Transfer(++id, expert / 8, expert % 8)
                                    : LocalClient::FillExpert(++id, expert / 8, expert % 8);
        entry.step = step;
        entry.flags = flags;
        peer.client->Submit(entry);
        Settle();
        Read();
        Arrivals();
        uint64_t place = 0;
        for (uint32_t part = 0; GetParam() == Opcode::kFillExpert && part < kPartCount; ++part) {
          EXPECT_TRUE(peer.client->Lease(ExpertExtentId(0, expert) + part, &place));
          peer.client->Release(ExpertExtentId(0, expert) + part, StepStamp(step, expert / 8), 0, flags == 0);
        }
        EXPECT_EQ(CodeOf(Next(peer.client.get())), absl::StatusCode::kOk);
      }
    }
    return core_->Stats().resident_requests - before;
  }
};

TEST_P(ScanFlagTest, ScanKeepsPartOfWhatItUsesAgain) { EXPECT_GE(HitsOfTheLastPass(kScanFlag), 8u); }

TEST_P(ScanFlagTest, WithoutTheFlagTheOldestIsEvicted) { EXPECT_EQ(HitsOfTheLastPass(0), 0u); }

INSTANTIATE_TEST_SUITE_P(Opcodes, ScanFlagTest, ::testing::Values(Opcode::kFillExpert, Opcode::kTransfer));

}  // namespace
}  // namespace sluice::weightd
