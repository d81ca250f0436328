// A pack's experts as weightd reads them: the extents of a set of parts.
#include "weightd/store/pack_extent_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/test_pack.h"

namespace sluice::weightd {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> Extents(const PackExtentSource& source, PartSet parts) {
  const ExtentList list = source.ExpertExtents(1, 2, parts);
  return {list.ids.begin(), list.ids.begin() + list.count};
}

TEST(PackExtentSourceTest, PartsOfAnExpertAreReadAlone) {
  const TestPack pack;
  const PackExtentSource source(*Pack::Open(pack.dir()));
  const uint32_t first = pack.pack().expert_extents(1, 2).first;
  EXPECT_THAT(Extents(source, kAllParts), ElementsAre(first, first + 1, first + 2));
  for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    EXPECT_THAT(Extents(source, PartBit(part)), ElementsAre(pack.pack().part(1, 2, part).extent));
  }
}

}  // namespace
}  // namespace sluice::weightd
