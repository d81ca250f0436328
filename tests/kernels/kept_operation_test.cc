// Tests that a kept operation owns its lists: later changes of the caller's lists have no effect.
#include <gtest/gtest.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/owned_operation.h"

namespace sluice {
namespace {

template <class Args>
class KeptStatesTest : public testing::Test {};
using RecurrentArgs = testing::Types<GatedDeltaArgs, MambaArgs, ShortConvArgs>;
TYPED_TEST_SUITE(KeptStatesTest, RecurrentArgs);

TYPED_TEST(KeptStatesTest, OutliveTheCallersLists) {
  std::vector<uint32_t> pages = {5, 6};
  std::vector<SequenceRows> sequences(1);
  sequences[0].pages = pages;
  std::vector<uint32_t> from = {1};
  std::vector<uint32_t> to = {2};
  TypeParam args;
  args.sequences = sequences;
  args.from = from;
  args.to = to;
  OwnedOperation kept{Operation(&args)};
  pages = {7, 7};
  sequences[0] = SequenceRows();
  from[0] = 7;
  to[0] = 7;
  const auto* own = std::get<const TypeParam*>(kept.get());
  ASSERT_EQ(own->sequences.size(), 1u);
  EXPECT_EQ(own->sequences[0].pages, absl::MakeConstSpan({5u, 6u}));
  EXPECT_EQ(own->from, absl::MakeConstSpan({1u}));
  EXPECT_EQ(own->to, absl::MakeConstSpan({2u}));
}

// A table of neurons may change while earlier work runs.
TEST(OwnedExpertsTest, OutliveTheCallersPositions) {
  std::vector<int32_t> positions = {3, -1};
  std::vector<ExpertWork> experts(1);
  experts[0].up.positions = experts[0].gate.positions = experts[0].down.positions = positions;
  MoeExpertsArgs args;
  args.experts = experts;
  OwnedOperation kept{Operation(&args)};
  positions = {7, 7};
  experts[0] = ExpertWork();
  const auto* own = std::get<const MoeExpertsArgs*>(kept.get());
  ASSERT_EQ(own->experts.size(), 1u);
  for (const WeightView* part : {&own->experts[0].up, &own->experts[0].gate, &own->experts[0].down}) {
    EXPECT_EQ(part->positions, absl::MakeConstSpan({3, -1}));
  }
}

}  // namespace
}  // namespace sluice
