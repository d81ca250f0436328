// Placement of segments on memory (NUMA) nodes. By default a page lies on the node of the thread that touches
// it first, a thread of weightd: the nodes' memory fills unevenly, and readers share one node's bandwidth.
//
// Thread safety: pure functions, and a system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sluice::weightd {

enum class NodePlacement : uint8_t {
  kInterleave,  // the pages of every segment in turn on all nodes
  kSegments,    // whole segments in turn
  kOff          // the kernel's default
};

// "interleave", "segments", "off".
const char* NameOf(NodePlacement placement);
std::optional<NodePlacement> ParseNodePlacement(const std::string& name);

// Arguments of mbind(2) for segment number `segment` over `nodes`, the ids of those with memory. No mode: the
// kernel's default stays, as with a single node.
struct NodePolicy {
  int mode = 0;  // MPOL_*; 0: none
  std::vector<unsigned long> mask;
};
NodePolicy PolicyOfSegment(NodePlacement placement, absl::Span<const uint32_t> nodes, uint32_t segment);

// Applies it to shared memory whose pages do not exist yet. Returns the system's error, which costs only
// speed.
absl::Status ApplyNodePolicy(const NodePolicy& policy, std::byte* memory, uint64_t bytes);

}  // namespace sluice::weightd
