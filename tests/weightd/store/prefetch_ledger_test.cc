#include "weightd/store/prefetch_ledger.h"

#include <gtest/gtest.h>

#include <map>

namespace sluice::weightd {
namespace {

class PrefetchLedgerTest : public testing::Test {
 protected:
  void Settle(size_t most = 100) {
    ledger_.Settle(most, [this](uint32_t extent_id) { return views_[extent_id]; });
  }
  PrefetchLedger ledger_;
  std::map<uint32_t, PrefetchLedger::View> views_;
};

TEST_F(PrefetchLedgerTest, UseCountsEvenIfTheExtentWasEvictedSince) {
  ledger_.Filled(1, 10);
  ledger_.Filled(2, 0);
  views_ = {{1, {11, true}}, {2, {5, false}}};
  Settle();
  EXPECT_EQ(ledger_.useful(), 2u);
  EXPECT_EQ(ledger_.wasted(), 0u);
  EXPECT_EQ(ledger_.open(), 0u);
}

TEST_F(PrefetchLedgerTest, UnusedEvictedAreWastedAndResidentOpen) {
  ledger_.Filled(1, 10);
  ledger_.Filled(2, 20);
  views_ = {{1, {10, false}}, {2, {20, true}}};
  Settle();
  EXPECT_EQ(ledger_.wasted(), 1u);
  EXPECT_EQ(ledger_.open(), 1u);
  Settle();
  EXPECT_EQ(ledger_.wasted(), 1u);
}

TEST_F(PrefetchLedgerTest, DemandThatFindsOneCountsItOnce) {
  ledger_.Filled(1, 0);
  ledger_.Demanded(1);
  ledger_.Demanded(1);
  ledger_.Demanded(7);
  EXPECT_EQ(ledger_.useful(), 1u);
  EXPECT_EQ(ledger_.open(), 0u);
}

TEST_F(PrefetchLedgerTest, EveryEntryGetsItsTurnThoughLooksAreFew) {
  for (uint32_t extent_id = 0; extent_id < 10; ++extent_id) {
    ledger_.Filled(extent_id, 0);
    views_[extent_id] = {0, true};
  }
  Settle(4);
  views_[9].resident = false;
  views_[0].last_use = 1;
  Settle(4);
  Settle(4);
  Settle(4);
  EXPECT_EQ(ledger_.wasted(), 1u);
  EXPECT_EQ(ledger_.useful(), 1u);
  EXPECT_EQ(ledger_.open(), 8u);
}

TEST_F(PrefetchLedgerTest, RebaseKeepsASessionsEndFromLookingLikeUse) {
  ledger_.Filled(1, 10);
  views_ = {{1, {4, true}}};
  ledger_.Rebase([this](uint32_t extent_id) { return views_[extent_id].last_use; });
  Settle();
  EXPECT_EQ(ledger_.useful(), 0u);
  EXPECT_EQ(ledger_.open(), 1u);
}

}  // namespace
}  // namespace sluice::weightd
