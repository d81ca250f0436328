// The up and gate products of a routed expert, computed by the experts' own kernels, for the stages that
// collect activations.
//
// Thread safety: see calibration_stage.h; called from taps.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/calibrate/windows/window_runner.h"
#include "kernels/ops.h"

namespace sluice::inferd {

// Receives the up and gate factors of one neuron of a tile, for one row.
using FactorVisitor = std::function<void(float up, float gate)>;

// Calls `visit` for each of the rows `rows` of x [any, hidden], in order, and in each row for every neuron of
// `work`'s tile. Uses the runner's scratch.
absl::Status VisitFactors(const WindowRunner& runner, const ActivationSpec& activation,
                          const ExpertWork& work, const Rows& x, absl::Span<const uint32_t> rows,
                          const FactorVisitor& visit);

}  // namespace sluice::inferd
