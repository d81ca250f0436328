// Rules for missing neurons: an expert's neurons all come in one copy if many are missing (CORM: gathering
// single ones does not pay above 75 % of it), and the largest are chosen within a budget of link time.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice::inferd {

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
