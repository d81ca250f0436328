// From which share of kept coefficients on an expert's rows are all read: the measured switches, or the
// defaults.
//
// Thread safety: thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/sparse_switch.h"

namespace sluice::host {

class DenseSwitch {
 public:
  // Replaces what was set before. INVALID_ARGUMENT above kMaxSparseSwitches.
  absl::Status Set(absl::Span<const SparseSwitchEntry> entries);
  // For an expert with as many rows as it has. 1 where it has no masks.
  float Above(const ExpertCall& expert) const;

 private:
  std::vector<SparseSwitchEntry> entries_;
};

}  // namespace sluice::host
