// The experts of a MoeExperts call: experts with few tokens are fused, the others run in two phases. Both
// compute the same bits.
//
// Thread safety: as Backend.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/sparse_switch.h"

namespace sluice::cpu {

// The share of kept coefficients from which all of an expert's rows are read: measured switches, or the
// defaults.

class DenseSwitch {
 public:
  // Replaces earlier entries. INVALID_ARGUMENT above kMaxSparseSwitches.
  absl::Status Set(absl::Span<const SparseSwitchEntry> entries);
  // Returns the share for an expert, by its number of rows. 1 if it has no masks.
  float Above(const ExpertCall& expert) const;

 private:
  std::vector<SparseSwitchEntry> entries_;
};

}  // namespace sluice::cpu
