#include "weightd/dram/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::weightd {
namespace {
constexpr uint32_t kBits = 8 * sizeof(unsigned long);
}  // namespace

const char* NameOf(NodePlacement placement) {
  switch (placement) {
    case NodePlacement::kSegments:
      return "segments";
    case NodePlacement::kOff:
      return "off";
    default:
      return "interleave";
  }
}

std::optional<NodePlacement> ParseNodePlacement(const std::string& name) {
  for (NodePlacement placement :
       {NodePlacement::kInterleave, NodePlacement::kSegments, NodePlacement::kOff}) {
    if (name == NameOf(placement)) return placement;
  }
  return std::nullopt;
}

NodePolicy PolicyOfSegment(NodePlacement placement, absl::Span<const uint32_t> nodes, uint32_t segment) {
  NodePolicy policy;
  if (placement == NodePlacement::kOff || nodes.size() < 2) {
    return policy;
  }
  policy.mask.resize(*std::max_element(nodes.begin(), nodes.end()) / kBits + 1);
  const auto add = [&policy](uint32_t node) { policy.mask[node / kBits] |= 1ul << node % kBits; };
  if (placement == NodePlacement::kInterleave) {
    policy.mode = MPOL_INTERLEAVE;
    std::for_each(nodes.begin(), nodes.end(), add);
  } else {
    policy.mode = MPOL_PREFERRED;  // another node's memory is better than none
    add(nodes[segment % nodes.size()]);
  }
  return policy;
}

absl::Status ApplyNodePolicy(const NodePolicy& policy, std::byte* memory, uint64_t bytes) {
  if (policy.mode == 0) {
    return absl::OkStatus();
  }
  // The kernel uses one bit less than it is told.
  const unsigned long bits = policy.mask.size() * kBits + 1;
  if (syscall(SYS_mbind, memory, bytes, policy.mode, policy.mask.data(), bits, 0) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("placing ", bytes, " bytes of a segment on memory nodes"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::weightd
