#include "weightd/store/arena.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/protocol/session_abi.h"

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

namespace {
// A pooled segment serves another class if at most 1/20 of it is wasted.
constexpr uint64_t kWasteDivisor = 20;
}  // namespace

std::optional<Slot> Arena::Allocate(uint64_t slot_bytes, uint32_t owner) {
  SizeClass& size_class = classes_[slot_bytes];
  if (size_class.partial.empty() && !TakePooled(slot_bytes, &size_class) &&
      !TakeNew(slot_bytes, &size_class)) {
    return std::nullopt;
  }
  const uint32_t id = *size_class.partial.begin();
  Segment& segment = *segments_.at(id);
  const uint32_t slot = segment.free.back();
  segment.free.pop_back();
  segment.owners[slot] = owner;
  if (segment.free.empty()) {
    size_class.partial.erase(id);
  }
  const uint64_t offset = slot * slot_bytes;
  return Slot{id, offset, segment.memory->map.data() + offset};
}

bool Arena::TakePooled(uint64_t slot_bytes, SizeClass* size_class) {
  for (uint32_t id : pool_) {
    const uint64_t bytes = segments_.at(id)->bytes;
    if (bytes >= slot_bytes && bytes % slot_bytes <= bytes / kWasteDivisor) {
      pool_.erase(id);
      Format(id, slot_bytes, size_class);
      return true;
    }
  }
  return false;
}

bool Arena::TakeNew(uint64_t slot_bytes, SizeClass* size_class) {
  const uint64_t wanted =
      size_class->declared > size_class->slots ? size_class->declared - size_class->slots : 1;
  const uint64_t target = std::min(options_.max_segment_bytes, options_.budget / options_.min_segments);
  const uint64_t slots =
      std::min({std::max<uint64_t>(1, target / slot_bytes), wanted, unspent_bytes() / slot_bytes});
  if (slots == 0) {
    return false;
  }
  if (next_id_ > kMaxSegmentId) {
    last_error_ = "segment numbers are used up";
    return false;
  }
  auto memory = CreateSharedMemory(absl::StrCat("sluice-segment-", next_id_), slots * slot_bytes,
                                   PeerAccess::kReadOnly);
  if (!memory.ok()) {
    last_error_ = memory.status().ToString();
    return false;
  }
  last_error_.clear();
  const uint32_t id = next_id_++;
  // The policy applies only to pages that nobody has touched yet.
  const absl::Status placed = ApplyNodePolicy(PolicyOfSegment(options_.placement, options_.nodes, id),
                                              memory->map.data(), memory->map.bytes());
  placement_error_ = placed.ok() ? "" : placed.ToString();
  auto segment = std::make_unique<Segment>();
  segment->memory = std::make_shared<const SharedMemory>(*std::move(memory));
  segment->bytes = segment->memory->map.bytes();
  total_bytes_ += segment->bytes;
  listener_.added(id, segment->memory);
  segments_[id] = std::move(segment);
  Format(id, slot_bytes, size_class);
  return true;
}

void Arena::Format(uint32_t id, uint64_t slot_bytes, SizeClass* size_class) {
  Segment& segment = *segments_.at(id);
  const auto slots = static_cast<uint32_t>(segment.bytes / slot_bytes);
  segment.slot_bytes = slot_bytes;
  segment.owners.assign(slots, kNoOwner);
  segment.free.resize(slots);
  for (uint32_t i = 0; i < slots; ++i) {
    segment.free[i] = slots - 1 - i;
  }
  segment.active_index = active_.size();
  active_.push_back(id);
  size_class->slots += slots;
  size_class->partial.insert(id);
}

void Arena::Free(uint32_t id, uint64_t offset) {
  Segment& segment = *segments_.at(id);
  SizeClass& size_class = classes_.at(segment.slot_bytes);
  const auto slot = static_cast<uint32_t>(offset / segment.slot_bytes);
  segment.owners[slot] = kNoOwner;
  segment.free.push_back(slot);
  size_class.partial.insert(id);
  if (segment.free.size() < segment.owners.size()) {
    return;
  }
  size_class.partial.erase(id);
  size_class.slots -= segment.owners.size();
  segment.slot_bytes = 0;
  const uint32_t last = active_.back();
  active_[segment.active_index] = last;
  segments_.at(last)->active_index = segment.active_index;
  active_.pop_back();
  pool_.insert(id);
}

void Arena::SetOwner(uint32_t id, uint64_t offset, uint32_t owner) {
  Segment& segment = *segments_.at(id);
  segment.owners[offset / segment.slot_bytes] = owner;
}

bool Arena::RetirePooled() {
  const std::set<uint32_t> pooled = std::exchange(pool_, {});
  for (uint32_t id : pooled) {
    Segment& segment = *segments_.at(id);
    segment.retired = true;
    retired_bytes_ += segment.bytes;
    listener_.retired(id);
  }
  return !pooled.empty();
}

bool Arena::AllowWaste(uint64_t slot_bytes) {
  for (uint32_t id : pool_) {
    if (segments_.at(id)->bytes >= slot_bytes) {
      pool_.erase(id);
      Format(id, slot_bytes, &classes_[slot_bytes]);
      return true;
    }
  }
  return false;
}

void Arena::Drop(uint32_t id) {
  auto found = segments_.find(id);
  if (found == segments_.end() || !found->second->retired) {
    return;
  }
  retired_bytes_ -= found->second->bytes;
  total_bytes_ -= found->second->bytes;
  const std::shared_ptr<const SharedMemory> memory = std::move(found->second->memory);
  segments_.erase(found);
  if (listener_.dropped) {
    listener_.dropped(memory);
  }
}

Arena::SegmentView Arena::active(size_t index) const {
  const uint32_t id = active_[index];
  const Segment& segment = *segments_.at(id);
  return SegmentView{id, segment.slot_bytes, &segment.owners};
}

std::vector<std::pair<uint32_t, std::shared_ptr<const SharedMemory>>> Arena::Mapped() const {
  std::vector<std::pair<uint32_t, std::shared_ptr<const SharedMemory>>> mapped;
  for (const auto& [id, segment] : segments_) {
    if (!segment->retired) {
      mapped.emplace_back(id, segment->memory);
    }
  }
  return mapped;
}

const SharedMemory* Arena::memory(uint32_t segment) const {
  auto found = segments_.find(segment);
  return found == segments_.end() ? nullptr : found->second->memory.get();
}

}  // namespace sluice::weightd
