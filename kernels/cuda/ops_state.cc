// GatedDelta, Mamba, ShortConv, SelectiveScan.

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/state.h"

namespace sluice::cuda {
namespace {

// Sequences and their slots, copied to the device.
absl::StatusOr<StateSequences> PutSequences(Device& device, const CallStates& states) {
  StateSequences all;
  all.count = static_cast<uint32_t>(states.sequences.size());
  RETURN_IF_ERROR(device.tables->Begin(all.count * sizeof(StateSequence) + 16));
  StateSequence* sequence = device.tables->Take(all.count, &all.sequences);
  for (size_t i = 0; i < all.count; ++i) {
    const SequenceRows& rows = states.sequences[i];
    *sequence++ = {rows.first_row, rows.rows, states.From(i), states.To(i)};
    all.max_rows = std::max(all.max_rows, rows.rows);
  }
  RETURN_IF_ERROR(device.tables->Send());
  return all;
}

// Workspace for the rows that the convolution of `call` makes.
template <typename Call>
absl::StatusOr<float*> TakeConvolved(Device& device, const Call& call) {
  Workspace workspace(device);
  ASSIGN_OR_RETURN(uint8_t* const rows,
                   workspace.Take(uint64_t{4} * call.tokens * call.ConvCols(), "convolved rows"));
  return reinterpret_cast<float*>(rows);
}

}  // namespace

absl::Status Run(Device& device, const GatedDeltaCall& call) {
  ASSIGN_OR_RETURN(const StateSequences sequences, PutSequences(device, call.states));
  DeltaLaunch launch{sequences, call};
  launch.q_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(call.shape.key_dim)));
  launch.head_decays = call.HeadDecays();
  ASSIGN_OR_RETURN(launch.convolved, TakeConvolved(device, call));
  return launch.max_rows == 0 ? absl::OkStatus()
                              : StatusOf(EnqueueDelta(launch, device.launcher),
                                         absl::StrCat("GatedDelta with values of ", call.shape.value_dim));
}

absl::Status Run(Device& device, const MambaCall& call) {
  ASSIGN_OR_RETURN(const StateSequences sequences, PutSequences(device, call.states));
  MambaLaunch launch{sequences, call};
  ASSIGN_OR_RETURN(launch.convolved, TakeConvolved(device, call));
  return launch.max_rows == 0 ? absl::OkStatus()
                              : StatusOf(EnqueueMamba(launch, device.launcher),
                                         absl::StrCat("Mamba with heads of ", call.shape.head_dim));
}

absl::Status Run(Device& device, const ShortConvCall& call) {
  ASSIGN_OR_RETURN(const StateSequences sequences, PutSequences(device, call.states));
  const ShortConvLaunch launch{sequences, call};
  return launch.max_rows == 0 ? absl::OkStatus()
                              : StatusOf(EnqueueShortConv(launch, device.launcher), "ShortConv");
}

absl::Status Run(Device& device, const SelectiveScanCall& call) {
  ASSIGN_OR_RETURN(const StateSequences sequences, PutSequences(device, call.states));
  const SelectiveScanLaunch launch{sequences, call};
  return launch.max_rows == 0 ? absl::OkStatus()
                              : StatusOf(EnqueueSelectiveScan(launch, device.launcher), "SelectiveScan");
}

}  // namespace sluice::cuda
