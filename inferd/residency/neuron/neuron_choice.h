// Which missing neurons travel: the rule by which all of an expert's come in one copy (CORM: where the active
// ones exceed 75 % of it, gathering single ones does not pay), and the choice of the largest within a budget
// of link time.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// Whether so many of an expert's neurons are too many to be gathered.
inline bool CopiesAll(uint32_t missing, uint32_t width, double share) {
  return static_cast<double>(missing) > share * static_cast<double>(width);
}

// A neuron that a layer lacks.
struct NeuronWant {
  float size = 0;       // |lead value|, the largest of its rows
  uint32_t demand = 0;  // of the layer: its expert
  uint32_t neuron = 0;
  uint32_t bytes = 0;  // over the link
};

// Link time for a layer's neurons.
struct NeuronBudget {
  double seconds = 0;
  double seconds_per_byte = 0;
  double latency_seconds = 0;  // of the first neuron of every expert
};

// Sorts by size, largest first, ties to the lower demand and neuron; those that fit into the budget, taken in
// this order, come first. Returns how many these are, and takes what they cost from the budget. `begun`:
// [demands], whether an expert has paid its latency; updated.
size_t ChooseLargest(absl::Span<NeuronWant> wants, absl::Span<uint8_t> begun, NeuronBudget* budget);

}  // namespace sluice
