// Experts for tests: made in any encoding, placed in a backend's memory, and run as one case of MoeExperts.
//
// Thread safety: for single-threaded tests.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/kernels/op_testing.h"

namespace sluice {

inline constexpr SparsityOrder kOrders[] = {SparsityOrder::kUp, SparsityOrder::kGate,
                                            SparsityOrder::kProduct};

struct Expert {
  EncodedMatrix up, gate, down;
  std::vector<float> up_bias, gate_bias, down_bias;  // empty: none
  std::vector<int32_t> positions;                    // empty: none
};

// Encodings of up, gate and down.
using Parts = std::array<EncodingDescriptor, 3>;

Expert MakeExpert(Random& random, const Parts& parts, uint32_t width, uint32_t hidden, bool biases);
// The same with down by outputs, in any encoding.
Expert MakeOutputExpert(Random& random, const Parts& parts, uint32_t width, uint32_t hidden, bool biases);

// One call (or one per tile) over some experts.
struct Case {
  std::vector<Expert> experts;
  std::vector<std::vector<uint32_t>> rows, slots;  // of each expert
  std::vector<float> x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  uint32_t slot_count = 0;
  ActivationSpec activation;
  SparsityOrder order = SparsityOrder::kNone;
  float threshold = 0;
  uint32_t tile = 0;  // neurons, 0: all at once
  bool down_by_outputs = false;
};

struct Result {
  std::vector<float> y;
  std::vector<int32_t> active;
};

ExpertWork PutExpert(OpBench& bench, const Expert& e);

Result RunCase(OpBench& bench, const Case& c);

// Every token goes to every expert.
void AssignAll(Case* c);

}  // namespace sluice
