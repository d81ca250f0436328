#include "common/transfer/transfer_plan.h"

#include <algorithm>
#include <utility>

#include "common/transfer/stream_copy.h"

namespace sluice {
namespace {

// True if `gap` is just the rounding between two rows of `stride`, and belongs to nobody else.
bool IsPadding(uint64_t gap, uint64_t stride) { return gap < (stride > 512 ? 64 : 16); }

// True if `next` lies right behind `lane` in every row, on both sides.
bool SideBySide(const CopyLane& lane, const PartCopy& next) {
  if (next.source < lane.source || next.dest < lane.dest) {
    return false;
  }
  const auto offset = static_cast<uint64_t>(next.source - lane.source);
  return lane.source_stride == next.source_stride && lane.dest_stride == next.dest_stride &&
         offset >= lane.row_bytes && IsPadding(offset - lane.row_bytes, lane.source_stride) &&
         offset == next.dest - lane.dest && offset + next.row_bytes <= lane.source_stride &&
         offset + next.row_bytes <= lane.dest_stride;
}

std::vector<CopyLane> MakeLanes(std::vector<PartCopy> parts, bool merge) {
  std::sort(parts.begin(), parts.end(),
            [](const PartCopy& a, const PartCopy& b) { return a.source < b.source; });
  std::vector<CopyLane> lanes;
  for (const PartCopy& part : parts) {
    if (merge && !lanes.empty() && SideBySide(lanes.back(), part)) {
      lanes.back().row_bytes = static_cast<uint64_t>(part.source - lanes.back().source) + part.row_bytes;
      continue;
    }
    lanes.push_back({part.source, part.dest, part.source_stride, part.dest_stride, part.row_bytes, false});
  }
  for (CopyLane& lane : lanes) {
    lane.solid = merge && lane.source_stride == lane.dest_stride && lane.dest_stride >= lane.row_bytes &&
                 IsPadding(lane.dest_stride - lane.row_bytes, lane.dest_stride);
  }
  return lanes;
}

// The last row of the piece has no gap behind it.
void CopyRun(const CopyLane& lane, uint64_t neuron, uint64_t slab_row, uint64_t rows, const std::byte* next,
             std::byte* slab) {
  StreamCopy(slab + lane.dest + slab_row * lane.dest_stride, lane.source + neuron * lane.source_stride,
             (rows - 1) * lane.dest_stride + lane.row_bytes, next);
}

void CopyLaneRows(const CopyLane& lane, const std::vector<uint32_t>& neurons, const PlanChunk& chunk,
                  std::byte* slab) {
  const uint64_t end = uint64_t{chunk.first} + chunk.rows;
  if (neurons.empty() && lane.solid) {
    CopyRun(lane, chunk.first, chunk.first, chunk.rows, nullptr, slab);
    return;
  }
  const uint64_t rows_ahead =
      std::max<uint64_t>(1, kPrefetchDistance / std::max<uint64_t>(1, lane.row_bytes));
  for (uint64_t i = chunk.first; i < end;) {
    const uint64_t neuron = neurons.empty() ? i : neurons[i];
    uint64_t run = 1;
    while (lane.solid && i + run < end && neurons[i + run] == neuron + run) {
      ++run;
    }
    const uint64_t soon = i + run - 1 + rows_ahead;
    const std::byte* next = nullptr;
    if (soon < end) {
      next = lane.source + (neurons.empty() ? soon : neurons[soon]) * lane.source_stride;
    }
    CopyRun(lane, neuron, i, run, next, slab);
    i += run;
  }
}

}  // namespace

TransferPlan MakeTransferPlan(const std::vector<PartCopy>& parts, uint32_t rows,
                              std::vector<uint32_t> neurons, uint32_t tile_neurons,
                              const PlanOptions& options) {
  TransferPlan plan;
  plan.lanes = MakeLanes(parts, options.merge);
  plan.neurons = std::move(neurons);
  uint64_t row_bytes = 0;
  for (const CopyLane& lane : plan.lanes) {
    row_bytes += lane.solid && plan.neurons.empty() ? lane.dest_stride : lane.row_bytes;
  }
  const bool listed = !plan.neurons.empty();
  const auto total = listed ? static_cast<uint32_t>(plan.neurons.size()) : rows;
  const uint32_t tile = tile_neurons == 0 ? total : std::min(tile_neurons, total);
  const uint64_t by_bytes = std::max<uint64_t>(1, options.chunk_bytes / row_bytes);
  const uint64_t by_count = std::max<uint64_t>(options.chunk_neurons, options.min_chunk_bytes / row_bytes);
  const auto step =
      static_cast<uint32_t>(std::min<uint64_t>(listed ? std::min(by_bytes, by_count) : by_bytes, tile));
  for (uint32_t begin = 0; begin < total; begin += std::min(tile, total - begin)) {
    const uint32_t end = begin + std::min(tile, total - begin);
    for (uint32_t at = begin; at < end; at += std::min(step, end - at)) {
      const uint32_t count = std::min(step, end - at);
      plan.chunks.push_back({at, count, plan.tiles, static_cast<uint32_t>(count * row_bytes)});
    }
    ++plan.tiles;
  }
  return plan;
}

// The bytes are rows of one byte: chunks and runs are cut as for any part whose rows have no gaps.
TransferPlan MakeRangePlan(const std::byte* source, uint64_t dest, uint32_t bytes,
                           const PlanOptions& options) {
  PlanOptions whole = options;
  whole.merge = true;
  return MakeTransferPlan({{source, dest, 1, 1, 1}}, bytes, {}, 0, whole);
}

void CopyPlanChunk(const TransferPlan& plan, const PlanChunk& chunk, std::byte* slab) {
  for (const CopyLane& lane : plan.lanes) {
    CopyLaneRows(lane, plan.neurons, chunk, slab);
  }
  StreamFence();
}

}  // namespace sluice
