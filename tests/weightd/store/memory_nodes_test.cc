// Placement of segments on machines with several memory nodes, and a check that this kernel accepts it.
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>

#include <vector>

#include "common/protocol/shared_memory.h"
#include "weightd/store/arena.h"

namespace sluice::weightd {
namespace {

TEST(MemoryNodesTest, InterleavesPagesOrWholeSegments) {
  const std::vector<uint32_t> nodes = {0, 2, 65};
  const NodePolicy pages = PolicyOfSegment(NodePlacement::kInterleave, nodes, 7);
  EXPECT_EQ(pages.mode, MPOL_INTERLEAVE);
  EXPECT_EQ(pages.mask, (std::vector<unsigned long>{0b101, 0b10}));
  std::vector<std::vector<unsigned long>> turns;
  for (uint32_t segment = 3; segment < 7; ++segment) {
    const NodePolicy policy = PolicyOfSegment(NodePlacement::kSegments, nodes, segment);
    EXPECT_EQ(policy.mode, MPOL_PREFERRED);
    turns.push_back(policy.mask);
  }
  EXPECT_EQ(turns, (std::vector<std::vector<unsigned long>>{{0b1, 0}, {0b100, 0}, {0, 0b10}, {0b1, 0}}));
}

TEST(MemoryNodesTest, LeavesOneNodeAndOffAlone) {
  EXPECT_EQ(PolicyOfSegment(NodePlacement::kInterleave, std::vector<uint32_t>{0}, 1).mode, 0);
  EXPECT_EQ(PolicyOfSegment(NodePlacement::kSegments, std::vector<uint32_t>{}, 1).mode, 0);
  EXPECT_EQ(PolicyOfSegment(NodePlacement::kOff, std::vector<uint32_t>{0, 1}, 1).mode, 0);
  EXPECT_TRUE(ApplyNodePolicy({}, nullptr, 0).ok());
}

TEST(MemoryNodesTest, MissingNodeIsAnErrorWithTheNumbers) {
  auto memory = CreateSharedMemory("sluice-nodes", 1 << 20, PeerAccess::kReadOnly);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const NodePolicy policy = PolicyOfSegment(NodePlacement::kSegments, std::vector<uint32_t>{900, 901}, 1);
  const absl::Status status = ApplyNodePolicy(policy, memory->map.data(), memory->map.bytes());
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("1048576 bytes"), std::string::npos) << status;
}

TEST(MemoryNodesTest, NamesAreThoseOfTheOption) {
  for (NodePlacement placement :
       {NodePlacement::kInterleave, NodePlacement::kSegments, NodePlacement::kOff}) {
    EXPECT_EQ(ParseNodePlacement(NameOf(placement)), placement);
  }
  EXPECT_EQ(ParseNodePlacement("bind"), std::nullopt);
}

}  // namespace
}  // namespace sluice::weightd
