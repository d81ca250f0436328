// TransferPlan: one transfer spelt out: which rows go from where in memory to where in a slab, in which
// chunks, and which chunks make a tile.
//
// Parts that lie side by side in a stream and go side by side into the slab travel as one row; a run of rows
// that has the same stride on both sides and (nearly) no gaps travels in one piece, gaps included.
//
// Thread safety: a value; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/encoding.h"

namespace sluice {

// Rows of one or more parts: row j (its neuron's number) at source + j * source_stride goes to dest + i *
// dest_stride, where i is j or its place in the list. Places in the slab are bytes from its start: where that
// is, only who copies knows.
struct CopyLane {
  const std::byte* source = nullptr;
  uint64_t dest = 0;
  uint64_t source_stride = 0;
  uint64_t dest_stride = 0;
  uint64_t row_bytes = 0;
  bool solid = false;  // equal strides without gaps to speak of: rows in a run are one piece
};

// Rows [first, first + rows) of every lane.
struct PlanChunk {
  uint32_t first = 0;
  uint32_t rows = 0;
  uint32_t tile = 0;
  uint32_t bytes = 0;
};

struct TransferPlan {
  std::vector<CopyLane> lanes;
  std::vector<uint32_t> neurons;  // empty: all
  std::vector<PlanChunk> chunks;  // in order of tiles
  uint32_t tiles = 0;
};

struct PlanOptions {
  // Whole experts are copied in chunks of about so many bytes: a tile of work for one thread.
  uint64_t chunk_bytes = 1ull << 20;
  // Listed neurons in chunks of so many (FloE's optimum; by transfer_bench 5 to 358 are alike).
  uint32_t chunk_neurons = 50;
  // But in no fewer than make so many bytes: short rows are not worth a turn of the schedule.
  uint64_t least_chunk_bytes = 512 << 10;
  // Off for comparison: every row of every part on its own.
  bool merge = true;
};

// One part as asked for: its rows at `source` with `source_stride`.
struct PartCopy {
  const std::byte* source = nullptr;
  uint64_t dest = 0;  // in the slab
  uint64_t source_stride = 0;
  uint64_t dest_stride = 0;
  uint64_t row_bytes = 0;
};

// `rows` of all parts, or those in `neurons` if it is not empty. REQUIRES: at least one part and row, rows
// that fit in 2^32 bytes a chunk.
TransferPlan MakeTransferPlan(const std::vector<PartCopy>& parts, uint32_t rows,
                              std::vector<uint32_t> neurons, uint32_t tile_neurons,
                              const PlanOptions& options);

// `bytes` that lie side by side, to `dest` of the slab. REQUIRES: above 0, below 2^32.
TransferPlan MakeRangePlan(const std::byte* source, uint64_t dest, uint32_t bytes,
                           const PlanOptions& options);

// Copies one chunk into a slab that begins at `slab`; the bytes are visible to whoever sees a release store
// made afterwards.
void CopyPlanChunk(const TransferPlan& plan, const PlanChunk& chunk, std::byte* slab);

}  // namespace sluice
