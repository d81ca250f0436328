// The union cache: which neurons each slot has, and where (CORM 3.4).
//
// A slot's neurons are records, appended compactly in the order in which they are asked for and never moved
// or rewritten: what a kernel reads stays as it is while others arrive. Positions() says the record of every
// neuron that is there, else -1, as WeightView::positions has it. A neuron is asked for
// (Reserve), then there (Land), or not after all (Drop). Records that were dropped are used again only if
// they are the last, or once nothing else is in the slot: so a slot may be out of records before it has all
// neurons, and is then Reset() and filled anew.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

class NeuronTable {
 public:
  static constexpr int32_t kAbsent = -1;
  static constexpr uint32_t kNoRecord = 0xffffffffu;

  NeuronTable(uint32_t slots, uint32_t most_neurons);

  // The slot is for an expert of `width` neurons now, none of which is there or asked for.
  void Reset(uint32_t slot, uint32_t width);

  // Records for neurons that are asked for: the first, the others follow. kNoRecord if there are not so many
  // left. REQUIRES: ascending, distinct, below the width, none of them asked for.
  uint32_t Reserve(uint32_t slot, absl::Span<const uint32_t> neurons);
  // Records [first, first + count) have arrived, or will not.
  void Land(uint32_t slot, uint32_t first, uint32_t count);
  void Drop(uint32_t slot, uint32_t first, uint32_t count);

  // Bit masks by neuron, [words()]: there; there or asked for.
  absl::Span<const uint64_t> present(uint32_t slot) const { return {&present_[At(slot)], words_}; }
  absl::Span<const uint64_t> asked(uint32_t slot) const { return {&asked_[At(slot)], words_}; }
  uint32_t words() const { return words_; }
  // How many.
  uint32_t present_count(uint32_t slot) const { return slots_[slot].present; }
  uint32_t asked_count(uint32_t slot) const { return slots_[slot].asked; }
  uint32_t width(uint32_t slot) const { return slots_[slot].width; }
  bool IsFull(uint32_t slot) const { return slots_[slot].width > 0 && present_count(slot) == width(slot); }
  // Whether every neuron is the record of its own number, so that no list is needed to find it.
  bool InOrder(uint32_t slot) const { return IsFull(slot) && slots_[slot].in_order; }
  // The neurons of records.
  absl::Span<const uint32_t> Neurons(uint32_t slot, uint32_t first, uint32_t count) const {
    return {&neurons_[uint64_t{slot} * most_ + first], count};
  }
  // By neuron of the slot's expert. It changes with every call: for one that copies it.
  absl::Span<const int32_t> Positions(uint32_t slot) const {
    return {&positions_[uint64_t{slot} * most_], slots_[slot].width};
  }

 private:
  struct Slot {
    uint32_t width = 0;
    uint32_t used = 0;  // records, dropped ones that cannot be used again included
    uint32_t present = 0;
    uint32_t asked = 0;  // there or asked for
    bool in_order = true;
  };
  uint64_t At(uint32_t slot) const { return uint64_t{slot} * words_; }

  const uint32_t most_;             // neurons, rounded up to whole words
  const uint32_t words_;            // of a mask
  std::vector<int32_t> positions_;  // [slots][most_]
  std::vector<Slot> slots_;
  std::vector<uint32_t> neurons_;  // [slots][most_], by record
  std::vector<uint64_t> present_;  // [slots][words_]
  std::vector<uint64_t> asked_;    // [slots][words_]
};

// Bit masks of neurons.
inline bool HasNeuron(absl::Span<const uint64_t> mask, uint32_t neuron) {
  return (mask[neuron / 64] >> neuron % 64 & 1) != 0;
}
uint32_t CountNeurons(absl::Span<const uint64_t> mask);

// Of `mask`: how many are in `other` too.
uint32_t CountBoth(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> other);

// Writes the neurons of `mask` that are not in `except`, ascending; returns how many. REQUIRES: room for
// them.
uint32_t ListNeurons(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> except, uint32_t* list);

}  // namespace sluice
