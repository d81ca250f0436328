// Union cache of neurons: tells the neurons that each slot has, and their records (CORM 3.4).
//
// A slot's neurons are records, appended compactly in the order of requests and never moved or rewritten:
// records that a kernel reads stay unchanged while others arrive. Positions() holds the record of every
// resident neuron, else -1, as WeightView::positions expects. A neuron is first requested (Reserve), then
// resident (Land) or dropped (Drop). Dropped records are reused only if they are the last ones, or once the
// slot is empty. So a slot may run out of records before it has all neurons; it is then Reset() and filled
// anew.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::inferd {

class NeuronTable {
 public:
  static constexpr int32_t kAbsent = -1;
  static constexpr uint32_t kNoRecord = 0xffffffffu;

  NeuronTable(uint32_t slots, uint32_t most_neurons);

  // Assigns the slot to an expert of `width` neurons, none of which is resident or requested.
  void Reset(uint32_t slot, uint32_t width);

  // Reserves consecutive records for requested neurons and returns the first. kNoRecord if too few are left.
  // REQUIRES: ascending, distinct, below the width, none of them requested.
  uint32_t Reserve(uint32_t slot, absl::Span<const uint32_t> neurons);
  // Records [first, first + count) have arrived (Land), or will not arrive (Drop).
  void Land(uint32_t slot, uint32_t first, uint32_t count);
  void Drop(uint32_t slot, uint32_t first, uint32_t count);

  // Bit masks by neuron, [words()]: resident; resident or requested.
  absl::Span<const uint64_t> present(uint32_t slot) const { return {&present_[At(slot)], words_}; }
  absl::Span<const uint64_t> asked(uint32_t slot) const { return {&asked_[At(slot)], words_}; }
  uint32_t words() const { return words_; }
  // Number of neurons in each mask.
  uint32_t present_count(uint32_t slot) const { return slots_[slot].present; }
  uint32_t asked_count(uint32_t slot) const { return slots_[slot].asked; }
  uint32_t width(uint32_t slot) const { return slots_[slot].width; }
  bool IsFull(uint32_t slot) const { return slots_[slot].width > 0 && present_count(slot) == width(slot); }
  // True if every neuron's record has its own number, so that no list is needed to find it.
  bool InOrder(uint32_t slot) const { return IsFull(slot) && slots_[slot].in_order; }
  // The neurons of records.
  absl::Span<const uint32_t> Neurons(uint32_t slot, uint32_t first, uint32_t count) const {
    return {&neurons_[uint64_t{slot} * most_ + first], count};
  }
  // Record of each neuron of the slot's expert. Rebuilt by every call; the caller copies it.
  absl::Span<const int32_t> Positions(uint32_t slot) const {
    return {&positions_[uint64_t{slot} * most_], slots_[slot].width};
  }

 private:
  struct Slot {
    uint32_t width = 0;
    uint32_t used = 0;  // records, unusable dropped ones included
    uint32_t present = 0;
    uint32_t asked = 0;  // resident or requested
    bool in_order = true;
  };
  uint64_t At(uint32_t slot) const { return uint64_t{slot} * words_; }

  const uint32_t most_;             // maximum neurons, rounded up to whole words
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

// Number of neurons in both `mask` and `other`.
uint32_t CountBoth(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> other);

// Writes the neurons of `mask` that are not in `except`, ascending; returns their number. REQUIRES: space for
// them.
uint32_t ListNeurons(absl::Span<const uint64_t> mask, absl::Span<const uint64_t> except, uint32_t* list);

// Rules for missing neurons: an expert's neurons all come in one copy if many are missing (CORM: gathering
// single ones does not pay above 75 % of it), and the largest are chosen within a budget of link time.
//
// Thread safety: plain values and pure functions.

// True if too many of an expert's neurons are missing to be gathered.
inline bool CopiesAll(uint32_t missing, uint32_t width, double share) {
  return static_cast<double>(missing) > share * static_cast<double>(width);
}

// A neuron that a layer lacks.
struct NeuronWant {
  float size = 0;       // |lead value|, the largest of its rows
  uint32_t demand = 0;  // index of its expert's demand
  uint32_t neuron = 0;
  uint32_t bytes = 0;  // over the link
};

// Link time for a layer's neurons.
struct NeuronBudget {
  double seconds = 0;
  double seconds_per_byte = 0;
  double latency_seconds = 0;  // of the first neuron of every expert
};

// Sorts by size, largest first, ties to the lower demand and neuron; those that fit into the budget, in this
// order, come first. Returns their number and subtracts their cost from the budget. `begun`: [demands], 1 if
// an expert has paid its latency; updated.
size_t ChooseLargest(absl::Span<NeuronWant> wants, absl::Span<uint8_t> begun, NeuronBudget* budget);

}  // namespace sluice::inferd
