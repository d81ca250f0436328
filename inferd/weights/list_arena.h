// ListArena: the client's side of a session's index arena, which holds lists of neurons until weightd has
// read them. It is a ring buffer; weightd releases lists in the order of their entries.
//
// Thread safety: thread-compatible; the engine thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ring/rings.h"

namespace sluice::inferd {

class ListArena {
 public:
  // Over the arena of `control`, which outlives this object.
  explicit ListArena(const ControlView& control) : control_(control), lent_(control.layout.ring_entries) {}

  // Copies a list in for submission entry `sequence`; returns its offset. `consumed`: number of entries that
  // weightd has taken, whose lists are free again. RESOURCE_EXHAUSTED: no room; INVALID_ARGUMENT: longer than
  // the arena. REQUIRES: neurons not empty; `sequence` ascends.
  absl::StatusOr<uint32_t> Lend(absl::Span<const uint32_t> neurons, uint64_t sequence, uint64_t consumed);

 private:
  struct LentList {
    uint64_t sequence = 0;
    uint32_t offset = 0;
  };
  const LentList& Oldest() const { return lent_[first_ % lent_.size()]; }

  const ControlView control_;
  std::vector<LentList> lent_;  // [ring_entries], a ring buffer
  size_t first_ = 0;
  size_t count_ = 0;
  uint32_t end_ = 0;  // offset of the next list
};

}  // namespace sluice::inferd
