// weightd's memory for extents: segments on memory nodes, cut into slots of one size class each.
//
// Thread safety: the functions on memory nodes may be called from any thread; Arena is thread-compatible, the
// store's lock guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/shared_memory.h"

namespace sluice::weightd {

// Placement of segments on memory (NUMA) nodes. By default a page is on the node of the thread that touches
// it first, a thread of weightd: the nodes' memory fills unevenly, and readers share one node's bandwidth.
//
// Thread safety: pure functions, and a system call.
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

// weightd's memory for extents: segments that are allocated on demand, shared with sessions, and returned
// whole.
//
// A segment is one sealed memory file, cut into slots of one size class (a class is an extent length). When
// its last slot becomes free it returns to the pool; a class whose slots fit with little waste may reuse it
// there. Otherwise it is retired: sessions unmap it, and its bytes count against the budget until Drop(). The
// sum of all segments never exceeds the budget, except for a while after the budget was made smaller.
//
// Thread safety: thread-compatible; the store's lock guards it.

inline constexpr uint32_t kNoOwner = std::numeric_limits<uint32_t>::max();
// Owner of a slot without an extent: its bytes went bad in memory and may still be read, or an abandoned read
// may still write to it.
inline constexpr uint32_t kBadSlotOwner = kNoOwner - 1;

struct Slot {
  uint32_t segment = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;
};

class Arena {
 public:
  struct Options {
    uint64_t budget = 0;
    uint64_t max_segment_bytes = 256ull * 1024 * 1024;
    // Maximum share of the budget per segment (always at least one slot): small budgets are not spent on one
    // class, and 1/32 leaves at most 3 % to a segment that is just being filled.
    uint64_t min_segments = 32;
    NodePlacement placement = NodePlacement::kInterleave;
    std::vector<uint32_t> nodes;  // nodes with memory; fewer than two: no placement
  };
  // Callbacks: for each new segment before one of its slots is handed out, for each retired one, and for each
  // dropped one. A retired segment is dropped by calling Drop(), also from within the callback.
  struct Listener {
    std::function<void(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory)> added;
    std::function<void(uint32_t segment)> retired;
    // The memory is freed with its last reference. May be empty.
    std::function<void(const std::shared_ptr<const SharedMemory>& memory)> dropped;
  };

  Arena(const Options& options, Listener listener) : options_(options), listener_(std::move(listener)) {}

  // Announces `count` more extents of `slot_bytes`: segments are not made larger than all of a class's
  // extents.
  void Declare(uint64_t slot_bytes, uint64_t count) { classes_[slot_bytes].declared += count; }

  // Allocates a slot for `owner` from the class's segments, the pool, or a new segment within the budget.
  // None: an eviction is needed first (or the system refused memory: last_error()).
  std::optional<Slot> Allocate(uint64_t slot_bytes, uint32_t owner);
  // Frees a slot. The segment returns to the pool with its last slot.
  void Free(uint32_t segment, uint64_t offset);

  void SetOwner(uint32_t segment, uint64_t offset, uint32_t owner);

  // Retires every pooled segment. True if there was one.
  bool RetirePooled();
  // Assigns the class a pooled segment that holds at least one of its slots, whatever the waste. True if
  // there was one.
  bool AllowWaste(uint64_t slot_bytes);
  // Releases the memory of a retired segment that no session maps any more.
  void Drop(uint32_t segment);

  // Sets the budget. Segments above it stay until they are retired and dropped; no new ones are made
  // meanwhile.
  void SetBudget(uint64_t budget) { options_.budget = budget; }

  // One segment, for choosing which one to empty.
  struct SegmentView {
    uint32_t id = 0;
    uint64_t slot_bytes = 0;
    const std::vector<uint32_t>* owners = nullptr;  // by slot; kNoOwner where free
  };
  // Returns the `index`-th segment in use; valid until the next call of a non-const method.
  SegmentView active(size_t index) const;
  size_t active_count() const { return active_.size(); }

  uint64_t budget() const { return options_.budget; }
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t retired_bytes() const { return retired_bytes_; }
  uint64_t unspent_bytes() const { return options_.budget - std::min(options_.budget, total_bytes_); }
  size_t segment_count() const { return segments_.size(); }
  // The reason why the system refused the last segment; empty if it did not.
  const std::string& last_error() const { return last_error_; }
  // The reason why the system did not place the last segment as requested; empty if it did.
  const std::string& placement_error() const { return placement_error_; }
  // Every segment that sessions may map, in order of age; without retired ones.
  std::vector<std::pair<uint32_t, std::shared_ptr<const SharedMemory>>> Mapped() const;
  // Null for a segment that does not exist.
  const SharedMemory* memory(uint32_t segment) const;

 private:
  struct Segment {
    std::shared_ptr<const SharedMemory> memory;
    uint64_t bytes = 0;
    uint64_t slot_bytes = 0;       // 0 in the pool and when retired
    std::vector<uint32_t> owners;  // by slot
    std::vector<uint32_t> free;    // slots, the lowest last
    size_t active_index = 0;
    bool retired = false;
  };
  struct SizeClass {
    uint64_t declared = 0;       // extents
    uint64_t slots = 0;          // in its segments
    std::set<uint32_t> partial;  // its segments with a free slot; the oldest is filled first
  };

  bool TakePooled(uint64_t slot_bytes, SizeClass* size_class);
  bool TakeNew(uint64_t slot_bytes, SizeClass* size_class);
  void Format(uint32_t id, uint64_t slot_bytes, SizeClass* size_class);

  Options options_;
  const Listener listener_;
  std::map<uint32_t, std::unique_ptr<Segment>> segments_;
  std::map<uint64_t, SizeClass> classes_;
  std::set<uint32_t> pool_;
  std::vector<uint32_t> active_;
  uint32_t next_id_ = 1;
  uint64_t total_bytes_ = 0;
  uint64_t retired_bytes_ = 0;
  std::string last_error_;
  std::string placement_error_;
};

}  // namespace sluice::weightd
