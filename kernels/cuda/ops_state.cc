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

}  // namespace

absl::Status Run(Device& device, const GatedDeltaCall& call) {
  DeltaLaunch launch;
  ASSIGN_OR_RETURN(launch.sequences, PutSequences(device, call.states));
  launch.qkv = call.qkv.base;
  launch.qkv_stride = call.qkv.stride;
  launch.z = call.z.base;
  launch.z_stride = call.z.stride;
  launch.beta = call.beta.base;
  launch.beta_stride = call.beta.stride;
  launch.decay = call.decay.base;
  launch.decay_stride = call.decay.stride;
  launch.conv = call.conv.base;
  launch.conv_stride = call.conv.stride;
  launch.a_log = call.a_log;
  launch.dt_bias = call.dt_bias;
  launch.norm_weight = call.norm.weight;
  launch.epsilon = call.norm.epsilon;
  launch.q_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(call.shape.key_dim)));
  launch.key_heads = call.shape.key_heads;
  launch.value_heads = call.shape.value_heads;
  launch.key_dim = call.shape.key_dim;
  launch.value_dim = call.shape.value_dim;
  launch.conv_kernel = call.shape.conv_kernel;
  launch.head_decays = call.HeadDecays();
  launch.decay_floor = call.shape.decay_floor;
  launch.sigmoid_gate = call.shape.sigmoid_gate;
  Workspace workspace(device);
  ASSIGN_OR_RETURN(uint8_t* const convolved,
                   workspace.Take(uint64_t{4} * call.tokens * call.ConvCols(), "convolved rows"));
  launch.convolved = reinterpret_cast<float*>(convolved);
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  return launch.sequences.max_rows == 0
             ? absl::OkStatus()
             : StatusOf(EnqueueDelta(launch, device.launcher),
                        absl::StrCat("GatedDelta with values of ", call.shape.value_dim));
}

absl::Status Run(Device& device, const MambaCall& call) {
  MambaLaunch launch;
  ASSIGN_OR_RETURN(launch.sequences, PutSequences(device, call.states));
  launch.z = call.z.base;
  launch.z_stride = call.z.stride;
  launch.xbc = call.xbc.base;
  launch.xbc_stride = call.xbc.stride;
  launch.dt = call.dt.base;
  launch.dt_stride = call.dt.stride;
  launch.conv = call.conv.base;
  launch.conv_stride = call.conv.stride;
  launch.conv_bias = call.conv_bias;
  launch.a_log = call.a_log;
  launch.dt_bias = call.dt_bias;
  launch.skip = call.skip;
  launch.norm_weight = call.norm.weight;
  launch.epsilon = call.norm.epsilon;
  launch.heads = call.shape.heads;
  launch.head_dim = call.shape.head_dim;
  launch.groups = call.shape.groups;
  launch.state = call.shape.state;
  launch.conv_kernel = call.shape.conv_kernel;
  launch.min_step = call.shape.min_step;
  launch.max_step = call.shape.max_step;
  Workspace workspace(device);
  ASSIGN_OR_RETURN(uint8_t* const convolved,
                   workspace.Take(uint64_t{4} * call.tokens * call.ConvCols(), "convolved rows"));
  launch.convolved = reinterpret_cast<float*>(convolved);
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  return launch.sequences.max_rows == 0 ? absl::OkStatus()
                                        : StatusOf(EnqueueMamba(launch, device.launcher),
                                                   absl::StrCat("Mamba with heads of ", call.shape.head_dim));
}

absl::Status Run(Device& device, const ShortConvCall& call) {
  ShortConvLaunch launch;
  ASSIGN_OR_RETURN(launch.sequences, PutSequences(device, call.states));
  launch.bcx = call.bcx.base;
  launch.bcx_stride = call.bcx.stride;
  launch.gated = call.gated;
  launch.conv = call.conv.base;
  launch.conv_stride = call.conv.stride;
  launch.bias = call.bias;
  launch.width = call.shape.width;
  launch.kernel = call.shape.kernel;
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  return launch.sequences.max_rows == 0 ? absl::OkStatus()
                                        : StatusOf(EnqueueShortConv(launch, device.launcher), "ShortConv");
}

absl::Status Run(Device& device, const SelectiveScanCall& call) {
  SelectiveScanLaunch launch;
  ASSIGN_OR_RETURN(launch.sequences, PutSequences(device, call.states));
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.z = call.z.base;
  launch.z_stride = call.z.stride;
  launch.step = call.step.base;
  launch.step_stride = call.step.stride;
  launch.b = call.b.base;
  launch.b_stride = call.b.stride;
  launch.c = call.c.base;
  launch.c_stride = call.c.stride;
  launch.a_log = call.a_log.base;
  launch.a_stride = call.a_log.stride;
  launch.skip = call.skip;
  launch.channels = call.channels;
  launch.states = call.state_size;
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  return launch.sequences.max_rows == 0
             ? absl::OkStatus()
             : StatusOf(EnqueueSelectiveScan(launch, device.launcher), "SelectiveScan");
}

}  // namespace sluice::cuda
