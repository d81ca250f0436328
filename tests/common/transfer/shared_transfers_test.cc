// Requests that share a transfer: who joins, who leaves, what the owner must do.
#include "common/protocol/shared_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "common/protocol/shared_memory.h"
#include "tests/support/fakes/fake_clock.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSession = 7;
constexpr uint32_t kBytes = 64;

TransferKey Rows(uint32_t expert, uint64_t session = kSession) {
  TransferKey key;
  key.session = session;
  key.expert = expert;
  key.parts = kAllParts;
  key.base = {0, 64, 128};
  key.stride = {16, 16, 16};
  key.neurons = {1, 4};
  return key;
}
TransferWaiter Demand(uint64_t id) { return {id, RequestClass::kDemand, 0, 0, nullptr}; }
TransferWaiter Prefetch(uint64_t id, uint64_t step = 0, uint32_t layer = 0) {
  return {id, RequestClass::kPrefetch, step, layer, nullptr};
}

class SharedTransfersTest : public ::testing::Test {
 protected:
  using Transfer = SharedTransfers<int>::Transfer;

  SharedTransfersTest() {
    memory_ = *CreateSharedMemory("slab", 4096, PeerAccess::kReadWrite);
    std::memset(memory_.map.data(), 0, memory_.map.bytes());
    slab_ = *HostSlab::Map(memory_.fd.get(), memory_.map.bytes());
    link_ = engine_.AddLink({});
  }
  static std::vector<uint64_t> Ids(const Transfer& transfer) {
    std::vector<uint64_t> ids;
    for (const TransferWaiter& waiter : transfer.waiters) {
      ids.push_back(waiter.id);
    }
    return ids;
  }
  void Copy(Transfer* transfer) {
    TransferJob job;
    job.link = link_;
    job.plan = MakeRangePlan(source_, 0, kBytes, {});
    job.slab = slab_;
    transfers_.StartCopy(transfer, std::move(job));
  }
  // Ends of copies, by number.
  std::vector<TransferEnd> Ends() {
    while (engine_.Step()) {
    }
    std::vector<TransferEnd> ends;
    for (const TransferEvent& event : engine_.TakeEvents()) {
      ends.push_back(std::get<TransferEnd>(event));
    }
    return ends;
  }

  const std::byte source_[kBytes] = {};
  FakeClock clock_;
  SharedMemory memory_;
  std::shared_ptr<Slab> slab_;
  TransferEngine engine_{{.threads = 0}, &clock_, [] {}};
  uint32_t link_ = 0;
  std::vector<uint64_t> left_;
  std::vector<uint64_t> cancelled_fills_;
  SharedTransfers<int> transfers_{
      &engine_,
      {.left = [this](uint64_t, uint64_t id) { left_.push_back(id); },
       .cancel_fill = [this](const Transfer& transfer) { cancelled_fills_.push_back(transfer.fill); }}};
};

TEST_F(SharedTransfersTest, EqualRowsInTheSamePlaceShareOneTransfer) {
  Transfer* const first = transfers_.Join(Rows(3), Demand(1));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(transfers_.Join(Rows(3), Demand(2)), nullptr) << "it is being filled";
  EXPECT_THAT(Ids(*first), ElementsAre(1, 2));
  std::vector<TransferKey> others(5, Rows(3));
  others[0].session = 8;
  others[1].expert = 4;
  others[2].base[1] = 65;
  others[3].neurons = {1, 5};
  others[4].slab = 1;
  for (size_t i = 0; i < others.size(); ++i) {
    Transfer* const other = transfers_.Join(others[i], Demand(10 + i));
    ASSERT_NE(other, nullptr) << i;
    EXPECT_THAT(Ids(*other), ElementsAre(10 + i));
  }
  EXPECT_TRUE(transfers_.Contains(kSession, 2));
  EXPECT_FALSE(transfers_.Contains(8, 2));
  EXPECT_EQ(transfers_.FindByRequest(kSession, 2), first);
  EXPECT_EQ(transfers_.FindByRequest(kSession, 99), nullptr);
}

TEST_F(SharedTransfersTest, DemandReplacesAPrefetchsFill) {
  Transfer* const transfer = transfers_.Join(Rows(3), Prefetch(1));
  const uint64_t slow = transfers_.BeginFill(transfer);
  EXPECT_EQ(transfers_.Join(Rows(3), Prefetch(2)), nullptr);
  EXPECT_EQ(transfers_.Join(Rows(3), Demand(3)), transfer) << "to be filled again";
  EXPECT_EQ(transfer->request_class, RequestClass::kDemand);
  EXPECT_THAT(Ids(*transfer), ElementsAre(3, 1, 2)) << "its tiles are counted for the demand";
  const uint64_t fast = transfers_.BeginFill(transfer);
  EXPECT_EQ(transfers_.EndFill(slow), nullptr) << "it counts no longer";
  EXPECT_EQ(transfers_.EndFill(fast), transfer);
  EXPECT_EQ(transfers_.EndFill(fast), nullptr);
  EXPECT_EQ(transfers_.Join(Rows(3), Demand(4)), nullptr) << "it is a demand already";
}

TEST_F(SharedTransfersTest, DemandPromotesARunningCopy) {
  Copy(transfers_.Join(Rows(0), Demand(1)));
  Transfer* const transfer = transfers_.Join(Rows(3), Prefetch(2));
  Copy(transfer);
  EXPECT_EQ(transfers_.Join(Rows(3), Demand(3)), nullptr);
  EXPECT_EQ(transfer->request_class, RequestClass::kDemand);
  EXPECT_THAT(Ids(*transfer), ElementsAre(2, 3)) << "the copy counts its tiles for the first";
  EXPECT_EQ(Ends().size(), 2u);
  EXPECT_EQ(engine_.stats().link_demand_bytes, 2 * kBytes);
}

TEST_F(SharedTransfersTest, CopyCountsTilesForItsFirstRequest) {
  const auto prefetchs = std::make_shared<std::atomic<uint64_t>>(0);
  const auto demands = std::make_shared<std::atomic<uint64_t>>(0);
  Transfer* const transfer = transfers_.Join(Rows(3), {1, RequestClass::kPrefetch, 0, 0, prefetchs});
  transfers_.BeginFill(transfer);
  transfers_.Join(Rows(3), {2, RequestClass::kDemand, 0, 0, demands});
  Copy(transfer);
  ASSERT_EQ(Ends().size(), 1u);
  EXPECT_EQ(*prefetchs, 0u);
  EXPECT_EQ(*demands, uint64_t{2} << 32 | 1) << "request 2, one tile";
}

TEST_F(SharedTransfersTest, LastRequestToLeaveCancelsTheFill) {
  Transfer* const transfer = transfers_.Join(Rows(3), Demand(1));
  transfers_.Join(Rows(3), Demand(2));
  const uint64_t fill = transfers_.BeginFill(transfer);
  EXPECT_FALSE(transfers_.Cancel(kSession, 99));
  EXPECT_TRUE(transfers_.Cancel(kSession, 1));
  EXPECT_THAT(left_, ElementsAre(1));
  EXPECT_FALSE(transfers_.Contains(kSession, 1));
  EXPECT_THAT(cancelled_fills_, IsEmpty());
  EXPECT_TRUE(transfers_.Cancel(kSession, 2));
  EXPECT_THAT(left_, ElementsAre(1)) << "it ends with its fill";
  EXPECT_THAT(cancelled_fills_, ElementsAre(fill));
  EXPECT_TRUE(transfer->closed);
  EXPECT_NE(transfers_.Join(Rows(3), Demand(3)), nullptr) << "a cancelled transfer is not joined";
  EXPECT_EQ(transfers_.EndFill(fill), transfer);
  EXPECT_THAT(Ids(transfers_.End(transfer->number)), ElementsAre(2));
  EXPECT_FALSE(transfers_.Contains(kSession, 2));
  EXPECT_EQ(transfers_.Join(Rows(3), Demand(4)), nullptr) << "with the third";
}

TEST_F(SharedTransfersTest, FirstRequestOfACopyStaysWhileOthersWait) {
  Transfer* const transfer = transfers_.Join(Rows(3), Demand(1));
  transfers_.Join(Rows(3), Demand(2));
  Copy(transfer);
  EXPECT_TRUE(transfers_.Cancel(kSession, 1)) << "its progress word is in use";
  EXPECT_THAT(left_, IsEmpty());
  EXPECT_TRUE(transfers_.Cancel(kSession, 2));
  EXPECT_THAT(left_, ElementsAre(2));
  EXPECT_FALSE(transfer->closed);
  EXPECT_TRUE(transfers_.Cancel(kSession, 1)) << "nobody else waits any more";
  EXPECT_TRUE(transfer->closed);
  const std::vector<TransferEnd> ends = Ends();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].cancelled);
  EXPECT_THAT(Ids(transfers_.End(ends[0].number)), ElementsAre(1));
  EXPECT_THAT(cancelled_fills_, IsEmpty());
}

TEST_F(SharedTransfersTest, FaultEndsAllRequestsAndFreesTheRows) {
  Transfer* const transfer = transfers_.Join(Rows(3), Prefetch(1));
  transfers_.Join(Rows(3), Prefetch(2));
  const uint64_t number = transfer->number;
  ASSERT_EQ(transfers_.EndFill(transfers_.BeginFill(transfer)), transfer);
  EXPECT_THAT(Ids(transfers_.End(number)), ElementsAre(1, 2));
  EXPECT_EQ(transfers_.Find(number), nullptr);
  EXPECT_NE(transfers_.Join(Rows(3), Prefetch(1)), nullptr) << "ids and rows are free again";
}

TEST_F(SharedTransfersTest, StalePrefetchesLeaveByStepAndLayer) {
  Transfer* const alone = transfers_.Join(Rows(0), Prefetch(1, 4, 2));
  Transfer* const mixed = transfers_.Join(Rows(1), Prefetch(2, 4, 2));
  transfers_.Join(Rows(1), Prefetch(3, 5, 0));
  transfers_.Join(Rows(2), Prefetch(4, 4, 3));
  transfers_.Join(Rows(3), Demand(5));
  transfers_.Join(Rows(3), Prefetch(6, 1, 1));
  transfers_.Join(Rows(4, /*session=*/8), Prefetch(7, 1, 1));
  EXPECT_EQ(transfers_.CancelPrefetches(kSession, /*pack=*/1, 9, 9), 0u);
  EXPECT_EQ(transfers_.CancelPrefetches(kSession, /*pack=*/0, /*step=*/4, /*layer=*/2), 2u);
  EXPECT_THAT(left_, ElementsAre(2));
  EXPECT_THAT(Ids(*mixed), ElementsAre(3));
  EXPECT_TRUE(alone->closed);
  EXPECT_THAT(cancelled_fills_, IsEmpty()) << "its read goes on";
  EXPECT_EQ(transfers_.CancelPrefetches(kSession, 0, 4, 2), 0u) << "each once";
}

TEST_F(SharedTransfersTest, StalePrefetchCopiesEndUnlessTheyHaveStarted) {
  Transfer* const transfer = transfers_.Join(Rows(0), Prefetch(1));
  Copy(transfer);
  Copy(transfers_.Join(Rows(1), Prefetch(2)));
  engine_.Step();  // sends the first one's chunk
  EXPECT_EQ(transfers_.CancelPrefetches(kSession, 0, 0, 0), 1u);
  EXPECT_FALSE(transfer->closed);
  int cancelled = 0;
  for (const TransferEnd& end : Ends()) {
    cancelled += end.cancelled ? 1 : 0;
    EXPECT_EQ(end.cancelled, Ids(transfers_.End(end.number)).front() == 2);
  }
  EXPECT_EQ(cancelled, 1);
}

TEST_F(SharedTransfersTest, DroppedSessionLeavesOnlyItsCopies) {
  Transfer* const filling = transfers_.Join(Rows(0), Demand(1));
  const uint64_t fill = transfers_.BeginFill(filling);
  Copy(transfers_.Join(Rows(1), Demand(2)));
  transfers_.Join(Rows(0, /*session=*/8), Demand(1));
  transfers_.DropSession(kSession);
  EXPECT_EQ(transfers_.EndFill(fill), nullptr);
  EXPECT_FALSE(transfers_.Contains(kSession, 1));
  EXPECT_TRUE(transfers_.Contains(8, 1));
  const std::vector<TransferEnd> ends = Ends();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_THAT(Ids(transfers_.End(ends[0].number)), IsEmpty());
}

// Random traffic: each request ends once, by leaving or with its transfer.
TEST_F(SharedTransfersTest, EveryRequestEndsOnce) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::multiset<uint64_t> open;
    uint64_t id = 1000 * seed;
    const auto end = [&](uint64_t number) {
      for (const uint64_t ended : Ids(transfers_.End(number))) {
        EXPECT_EQ(open.erase(ended), 1u) << "seed " << seed;
      }
    };
    const auto reap = [&] {
      for (const uint64_t left : std::exchange(left_, {})) {
        EXPECT_EQ(open.erase(left), 1u) << "seed " << seed;
      }
    };
    for (int event = 0; event < 400; ++event) {
      const uint64_t dice = random() % 9;
      if (dice < 4) {
        const auto expert = static_cast<uint32_t>(random() % 4);
        open.insert(++id);
        Transfer* const transfer =
            transfers_.Join(Rows(expert), random() % 2 == 0 ? Demand(id) : Prefetch(id, random() % 4));
        if (transfer != nullptr) {
          transfers_.BeginFill(transfer);
        }
      } else if (dice == 4) {
        const uint64_t target = id - random() % 20;
        EXPECT_EQ(transfers_.Cancel(kSession, target), open.contains(target));
      } else if (dice == 5) {
        transfers_.CancelPrefetches(kSession, 0, random() % 4, 0);
      } else if (dice == 6) {
        for (const TransferEnd& ended : Ends()) {
          end(ended.number);
        }
      } else if (!transfers_.transfers().empty()) {
        const auto at = std::next(transfers_.transfers().begin(),
                                  static_cast<int>(random() % transfers_.transfers().size()));
        Transfer* const transfer = transfers_.EndFill(at->second.fill);
        if (transfer == nullptr || transfer->copying) {
          continue;
        }
        if (transfer->closed || random() % 4 == 0) {
          end(transfer->number);
        } else {
          Copy(transfer);
        }
      }
      reap();
    }
    for (const TransferEnd& ended : Ends()) {
      end(ended.number);
    }
    while (!transfers_.transfers().empty()) {
      end(transfers_.transfers().begin()->first);
    }
    EXPECT_THAT(open, IsEmpty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice
