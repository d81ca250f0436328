// RopeKvWrite, LatentKvWrite, Attention.

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/attention.h"

namespace sluice::cuda {
namespace {

DeviceKv KvOf(const CallKv& kv) {
  static_assert(static_cast<int>(KvKind::kF32) == static_cast<int>(KvType::kF32));
  static_assert(static_cast<int>(KvKind::kF16) == static_cast<int>(KvType::kF16));
  static_assert(static_cast<int>(KvKind::kQ8) == static_cast<int>(KvType::kQ8));
  static_assert(kPagePositions == kPageTokens && kSpanPositions == kSpanTokens);
  return {kv.k,
          kv.v,
          kv.page_stride,
          kv.v_page_stride,
          kv.kv_heads,
          kv.head_dim,
          kv.value_dim,
          kv.v_dim,
          static_cast<KvKind>(kv.type)};
}

struct Places {
  const RowPlace* device = nullptr;
  uint32_t rows = 0;
  uint32_t most_spans = 1;  // that a row sees
};

// Every row's place, and its sequence's pages, copied to the device.
template <typename FirstVisibleOf>
absl::StatusOr<Places> PutPlaces(Device& device, absl::Span<const SequenceRows> sequences,
                                 FirstVisibleOf first_visible) {
  Places places;
  uint64_t bytes = 0;
  for (const SequenceRows& sequence : sequences) {
    places.rows += sequence.rows;
    bytes += 4 * sequence.pages.size() + 16;
  }
  RETURN_IF_ERROR(device.tables->Begin(bytes + places.rows * sizeof(RowPlace) + 16));
  RowPlace* row = device.tables->Take(places.rows, &places.device);
  for (const SequenceRows& sequence : sequences) {
    const uint32_t* const pages = device.tables->Put(sequence.pages);
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      const uint32_t position = sequence.first_position + i;
      const uint32_t first = first_visible(position);
      *row++ = {pages, sequence.first_row + i, position, first};
      places.most_spans = std::max(places.most_spans, position / kSpanTokens - first / kSpanTokens + 1);
    }
  }
  RETURN_IF_ERROR(device.tables->Send());
  return places;
}

template <typename Call>
DeviceTemperature TemperatureOf(const Call& call) {
  return {call.temperature_scale, call.temperature_floor, call.temperature_offset};
}

}  // namespace

absl::Status Run(Device& device, const RopeKvWriteCall& call) {
  if (call.rope_offset != 0 || call.qk_norm == QkNorm::kWeightedKey) {
    return absl::UnimplementedError(
        absl::StrCat("RopeKvWrite that rotates from value ", call.rope_offset,
                     " on, or with norms with weights on k alone, on device cuda"));
  }
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, [](uint32_t p) { return p; }));
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
  launch.rope_interleaved = call.rope_interleaved;
  launch.kv = KvOf(call.kv);
  return places.rows == 0 ? absl::OkStatus()
                          : StatusOf(EnqueueKvWrite(launch, device.launcher), "RopeKvWrite");
}

absl::Status Run(Device& device, const LatentKvWriteCall& call) {
  if (call.rope_dims == 0) {
    return absl::UnimplementedError("LatentKvWrite without rotated values on device cuda");
  }
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, [](uint32_t p) { return p; }));
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

absl::Status Run(Device& /*device*/, const IndexSelectCall& call) {
  return absl::UnimplementedError(absl::StrCat("IndexSelect of ", call.heads, " heads on device cuda"));
}

absl::Status Run(Device& /*device*/, const RopeHeadsCall& call) {
  return absl::UnimplementedError(absl::StrCat("RopeHeads of ", call.heads, " heads on device cuda"));
}

absl::Status Run(Device& /*device*/, const StreamMixCall& call) {
  return absl::UnimplementedError(absl::StrCat("StreamMix of ", call.streams, " streams on device cuda"));
}

absl::Status Run(Device& /*device*/, const StreamWriteCall& call) {
  return absl::UnimplementedError(absl::StrCat("StreamWrite of ", call.streams, " streams on device cuda"));
}

absl::Status Run(Device& /*device*/, const StreamMeanCall& call) {
  return absl::UnimplementedError(absl::StrCat("StreamMean of ", call.streams, " streams on device cuda"));
}

absl::Status Run(Device& /*device*/, const StreamAddCall& call) {
  return absl::UnimplementedError(absl::StrCat("StreamAdd to ", call.streams, " streams on device cuda"));
}

absl::Status Run(Device& /*device*/, const StreamMatchCall& call) {
  return absl::UnimplementedError(absl::StrCat("StreamMatch of ", call.streams, " streams on device cuda"));
}

absl::Status Run(Device& /*device*/, const CompressCall& call) {
  return absl::UnimplementedError(
      absl::StrCat("Compress of ", call.entries.rate, " positions to an entry on device cuda"));
}

absl::Status Run(Device& /*device*/, const CompressedAttentionCall& call) {
  return absl::UnimplementedError(
      absl::StrCat("CompressedAttention of ", call.heads, " heads on device cuda"));
}

absl::Status Run(Device& device, const AttentionCall& call) {
  if (call.chosen.blocks != nullptr) {
    return absl::UnimplementedError("Attention over chosen blocks on device cuda");
  }
  ASSIGN_OR_RETURN(const Places places,
                   PutPlaces(device, call.sequences, [&](uint32_t p) { return FirstVisible(p, call); }));
  if (places.rows == 0) {
    return absl::OkStatus();
  }
  AttentionLaunch launch;
  launch.places = places.device;
  launch.rows = places.rows;
  launch.q = call.q.base;
  launch.q_stride = call.q.stride;
  launch.heads = call.heads;
  launch.scale = call.scale;
  launch.sinks = call.sinks;
  launch.kv = KvOf(call.kv);
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  // Spans side by side where their partial sums have room, as those of a decode step do; a prompt has rows
  // enough to fill a GPU.
  Workspace workspace(device);
  const uint64_t bytes = uint64_t{places.rows} * call.heads * places.most_spans * (call.kv.value_dim + 2) * 4;
  if (places.most_spans > 1 && bytes <= workspace.left()) {
    launch.splits = places.most_spans;
    ASSIGN_OR_RETURN(uint8_t* const partial, workspace.Take(bytes, "spans"));
    launch.partial = reinterpret_cast<float*>(partial);
  }
  return StatusOf(EnqueueAttention(launch, device.launcher),
                  absl::StrCat("Attention with values of ", call.kv.value_dim));
}

}  // namespace sluice::cuda
