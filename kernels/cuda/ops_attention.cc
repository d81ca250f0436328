// RopeKvWrite, LatentKvWrite, RopeHeads, Attention.

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/places.h"

namespace sluice::cuda {
namespace {

template <typename Call>
DeviceTemperature TemperatureOf(const Call& call) {
  return {call.temperature_scale, call.temperature_floor, call.temperature_offset};
}

}  // namespace

absl::Status Run(Device& device, const RopeKvWriteCall& call) {
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, OwnPosition));
  KvWriteLaunch launch;
  launch.places = places.device;
  launch.rows = places.rows;
  launch.q = call.q.base;
  launch.q_stride = call.q.stride;
  launch.k = call.k.base;
  launch.k_stride = call.k.stride;
  launch.v = call.v.base;
  launch.v_stride = call.v.stride;
  launch.heads = call.heads;
  launch.qk_norm = call.qk_norm;
  launch.q_weight = call.q_norm.weight;
  launch.k_weight = call.k_norm.weight;
  launch.q_epsilon = call.q_norm.epsilon;
  launch.k_epsilon = call.k_norm.epsilon;
  launch.value_norm = call.value_norm;
  launch.clip = call.clip;
  launch.temperature = TemperatureOf(call);
  launch.rope_table = call.rope_table;
  launch.rope_dims = call.rope_dims;
  launch.rope_offset = call.rope_offset;
  launch.rope_interleaved = call.rope_interleaved;
  launch.kv = KvOf(call.kv);
  return places.rows == 0 ? absl::OkStatus()
                          : StatusOf(EnqueueKvWrite(launch, device.launcher), "RopeKvWrite");
}

absl::Status Run(Device& device, const LatentKvWriteCall& call) {
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, OwnPosition));
  LatentKvWriteLaunch launch;
  launch.places = places.device;
  launch.rows = places.rows;
  launch.q = call.q.base;
  launch.q_stride = call.q.stride;
  launch.latent = call.latent.base;
  launch.latent_stride = call.latent.stride;
  launch.q_out = call.q_out.base;
  launch.q_out_stride = call.q_out.stride;
  launch.heads = call.heads;
  launch.nope_dim = call.nope_dim;
  launch.kv_rank = call.kv_rank;
  launch.normed = call.norm.weight != nullptr;
  launch.weight = call.norm.weight;
  launch.epsilon = call.norm.epsilon;
  launch.temperature = TemperatureOf(call);
  launch.rope_table = call.rope_table;
  launch.rope_dims = call.rope_dims;
  launch.rope_interleaved = call.rope_interleaved;
  launch.kv = KvOf(call.kv);
  return places.rows == 0 ? absl::OkStatus()
                          : StatusOf(EnqueueLatentKvWrite(launch, device.launcher), "LatentKvWrite");
}

absl::Status Run(Device& device, const RopeHeadsCall& call) {
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, OwnPosition));
  RopeHeadsLaunch launch;
  launch.places = places.device;
  launch.rows = places.rows;
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.heads = call.heads;
  launch.head_dim = call.head_dim;
  launch.rope = RopeOf(call.rope);
  launch.back = call.back;
  return places.rows == 0 || call.rope.dims == 0
             ? absl::OkStatus()
             : StatusOf(EnqueueRopeHeads(launch, device.launcher), "RopeHeads");
}

absl::Status Run(Device& device, const AttentionCall& call) {
  if (call.chosen.blocks != nullptr) {
    return RunListed(device, call);
  }
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, [&](const RowPlace& row) {
                     return KeyRange{FirstVisible(row.position, call), row.position};
                   }));
  if (places.rows == 0) {
    return absl::OkStatus();
  }
  AttentionLaunch launch;
  FillAttention(call, places, &launch);
  Workspace workspace(device);
  RETURN_IF_ERROR(SplitSpans(&workspace, places, &launch));
  return StatusOf(EnqueueAttention(launch, device.launcher),
                  absl::StrCat("Attention with values of ", call.kv.value_dim));
}

}  // namespace sluice::cuda
