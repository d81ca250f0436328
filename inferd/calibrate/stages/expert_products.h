// The up and gate products of a routed expert, computed by the same kernels as the experts themselves: what
// the stages that collect activations look at.
//
// Thread safety: see calibration_stage.h; called from taps.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/calibrate/windows/window_runner.h"
#include "kernels/ops.h"

namespace sluice {

// The up and gate factors of one row's neurons of a tile.
using FactorVisitor = std::function<void(float up, float gate)>;

// Calls `visit` for each of the rows `rows` of x [any, hidden], in their order, and in each row for every
// neuron of `work`'s tile. Uses the runner's scratch.
absl::Status VisitFactors(const WindowRunner& runner, const ActivationSpec& activation,
                          const ExpertWork& work, const Rows& x, absl::Span<const uint32_t> rows,
                          const FactorVisitor& visit);

}  // namespace sluice
