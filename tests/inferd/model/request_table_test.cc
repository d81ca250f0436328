#include "inferd/model/request_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace sluice::inferd {
namespace {

TEST(RequestTable, GivesEveryRequestAnIdOfItsOwnAndFindsItOnce) {
  RequestTable table(3);
  const uint64_t first = table.Add({77, RequestClass::kDemand});
  const uint64_t second = table.Add({77, RequestClass::kPrefetch});
  EXPECT_NE(first, second);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.prefetches(), 1u);
  const auto found = table.Take(second);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->caller_id, 77u);
  EXPECT_EQ(found->request_class, RequestClass::kPrefetch);
  EXPECT_FALSE(table.Take(second).has_value());
  EXPECT_EQ(table.prefetches(), 0u);
  EXPECT_EQ(table.size(), 1u);
}

TEST(RequestTable, UnknownIdsMatchNothing) {
  RequestTable table(2);
  const uint64_t id = table.Add({1, RequestClass::kDemand});
  for (const uint64_t strange : {uint64_t{0}, uint64_t{1}, id + 1, id + (uint64_t{1} << 14), ~uint64_t{0}}) {
    EXPECT_FALSE(table.Take(strange).has_value()) << strange;
  }
  EXPECT_TRUE(table.Take(id).has_value());
}

TEST(RequestTable, IdsOfReusedSlotsAreNew) {
  RequestTable table(kMaxRingEntries);
  std::mt19937_64 random(1);
  std::map<uint64_t, uint64_t> live;
  std::set<uint64_t> used;
  for (uint64_t i = 0; i < 100'000; ++i) {
    if (live.empty() || (table.size() < table.capacity() && random() % 2 == 0)) {
      const uint64_t id = table.Add({i, RequestClass::kDemand});
      EXPECT_TRUE(used.insert(id).second);
      live[id] = i;
    } else {
      auto any = live.lower_bound(random() % (used.size() << 14));
      any = any == live.end() ? live.begin() : any;
      EXPECT_EQ(table.Take(any->first)->caller_id, any->second);
      live.erase(any);
    }
    EXPECT_EQ(table.size(), live.size());
  }
}

}  // namespace
}  // namespace sluice::inferd
