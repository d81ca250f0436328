// IndexSelect, Attention over chosen blocks, Compress, CompressedAttention.

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/sparse.h"
#include "kernels/cuda/places.h"

namespace sluice::cuda {

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

DeviceEntries EntriesOf(const CallEntries& entries) {
  return {entries.base, entries.page_stride, entries.head_dim, entries.rate,
          static_cast<KvKind>(entries.type)};
}

DeviceRope RopeOf(const CallRope& rope) { return {rope.table, rope.dims, rope.offset, rope.interleaved}; }

absl::Status SplitSpans(Workspace* workspace, const Places& places, AttentionLaunch* launch) {
  const uint64_t bytes =
      uint64_t{launch->rows} * launch->heads * places.most_spans * (launch->kv.value_dim + 2) * 4;
  if (places.most_spans == 1 || bytes > workspace->left()) {
    return absl::OkStatus();
  }
  launch->splits = places.most_spans;
  ASSIGN_OR_RETURN(uint8_t* const partial, workspace->Take(bytes, "spans"));
  launch->partial = reinterpret_cast<float*>(partial);
  return absl::OkStatus();
}

namespace {

DeviceLists ListsOf(const ChosenCall& chosen) {
  return {chosen.blocks, std::max(chosen.lists, 1u), chosen.top, chosen.block, chosen.whole};
}

absl::Status EnqueueListed(Device& device, const Places& places, ListedAttentionLaunch launch,
                           const char* what) {
  Workspace workspace(device);
  RETURN_IF_ERROR(SplitSpans(&workspace, places, &launch));
  return StatusOf(EnqueueListedAttention(launch, device.launcher),
                  absl::StrCat(what, " with values of ", launch.kv.value_dim));
}

}  // namespace

absl::Status RunListed(Device& device, const AttentionCall& call) {
  const ChosenCall& chosen = call.chosen;
  ASSIGN_OR_RETURN(
      const Places places, PutPlaces(device, call.sequences, [&](const RowPlace& row) {
        return KeyRange{0, SeenPositions(row.position, chosen.top, chosen.block, chosen.whole) - 1};
      }));
  ListedAttentionLaunch launch;
  FillAttention(call, places, &launch);
  launch.chosen = ListsOf(chosen);
  return places.rows == 0 ? absl::OkStatus() : EnqueueListed(device, places, launch, "sparse Attention");
}

absl::Status Run(Device& device, const CompressedAttentionCall& call) {
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, [&](const RowPlace& row) {
                     return KeyRange{0, call.KeysOf(row.row, row.position).size() - 1};
                   }));
  ListedAttentionLaunch launch;
  FillAttention(call, places, &launch);
  launch.chosen = ListsOf(call.chosen);
  launch.window = call.sliding_window;
  launch.entries = EntriesOf(call.entries);
  return places.rows == 0 ? absl::OkStatus() : EnqueueListed(device, places, launch, "CompressedAttention");
}

// The rows that have lists, as many at once as the workspace has room for their scores.
absl::Status Run(Device& device, const IndexSelectCall& call) {
  const ChosenCall& chosen = call.chosen;
  const auto keys_of = [&](const RowPlace& row) -> std::optional<KeyRange> {
    if (SeesAll(row.position, chosen.top, chosen.block, chosen.whole)) {
      return std::nullopt;
    }
    return KeyRange{0, call.KeysOf(row.position) - 1};
  };
  ASSIGN_OR_RETURN(const Places places, PutPlaces(device, call.sequences, keys_of));
  if (places.rows == 0) {
    return absl::OkStatus();
  }
  IndexLaunch launch;
  // Whole spans, so that a step's launches are mostly those of the step before.
  launch.most_keys = (places.most_keys + kSpanTokens - 1) / kSpanTokens * kSpanTokens;
  launch.q = call.q.base;
  launch.q_stride = call.q.stride;
  launch.weights = call.weights.base;
  launch.weights_stride = call.weights.stride;
  launch.summed = call.summed;
  launch.heads = call.heads;
  launch.scale = call.scale;
  launch.local = call.local;
  launch.keys = KvOf(call.keys);
  launch.entries = EntriesOf(call.entries);
  launch.chosen = ListsOf(chosen);
  if (IndexShared(launch) > device.shared_bytes) {
    return absl::UnimplementedError(absl::StrCat("IndexSelect of ", call.heads, " heads of ", call.KeyDim(),
                                                 " values on device cuda: ", IndexShared(launch),
                                                 " bytes of shared memory of ", device.shared_bytes));
  }
  const uint64_t bytes = uint64_t{chosen.lists} * launch.ScoreFloats() * 4;
  Workspace workspace(device);
  const uint64_t at_once = std::clamp<uint64_t>(workspace.left() / bytes, 1, places.rows);
  ASSIGN_OR_RETURN(uint8_t* const scores, workspace.Take(at_once * bytes, "index scores"));
  launch.scores = reinterpret_cast<float*>(scores);
  for (uint32_t first = 0; first < places.rows; first += static_cast<uint32_t>(at_once)) {
    launch.places = places.device + first;
    launch.rows = std::min(places.rows - first, static_cast<uint32_t>(at_once));
    RETURN_IF_ERROR(StatusOf(EnqueueIndexSelect(launch, device.launcher), "IndexSelect"));
  }
  return absl::OkStatus();
}

absl::Status Run(Device& device, const CompressCall& call) {
  const uint32_t rate = call.entries.rate;
  const size_t count = call.states.sequences.size();
  CompressLaunch launch;
  uint64_t bytes = 0;
  for (const SequenceRows& rows : call.states.sequences) {
    bytes += 4 * rows.pages.size() + 16;
  }
  RETURN_IF_ERROR(device.tables->Begin(bytes + count * sizeof(CompressSequence) + 16));
  CompressSequence* sequence = device.tables->Take(count, &launch.sequences);
  for (size_t i = 0; i < count; ++i) {
    const SequenceRows& rows = call.states.sequences[i];
    *sequence++ = {device.tables->Put(rows.pages),
                   rows.first_row,
                   rows.rows,
                   rows.first_position,
                   call.states.From(i),
                   call.states.To(i)};
    // Not the entries of these positions: a decode step's launches are those of the step before.
    launch.most_entries = std::max(launch.most_entries, (rows.rows + rate - 1) / rate);
  }
  RETURN_IF_ERROR(device.tables->Send());
  launch.count = static_cast<uint32_t>(count);
  launch.values = call.values.base;
  launch.values_stride = call.values.stride;
  launch.gates = call.gates.base;
  launch.gates_stride = call.gates.stride;
  launch.bias = call.bias.base;
  launch.bias_stride = call.bias.stride;
  launch.overlap = call.overlap;
  launch.norm_weight = call.norm.weight;
  launch.norm_epsilon = call.norm.epsilon;
  launch.rope = RopeOf(call.rope);
  launch.entries = EntriesOf(call.entries);
  return count == 0 ? absl::OkStatus()
                    : StatusOf(EnqueueCompress(launch, device.launcher),
                               absl::StrCat("Compress of ", rate, " positions to an entry"));
}

}  // namespace sluice::cuda
