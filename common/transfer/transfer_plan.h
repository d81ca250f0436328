// TransferPlan: one transfer in detail: the rows, their addresses in memory and in a slab, the division into
// chunks, and the chunks of each tile.
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
// dest_stride, where i is j or its index in the list. Slab positions are byte offsets from its start: only
// the copier knows the slab's address.
struct CopyLane {
  const std::byte* source = nullptr;
  uint64_t dest = 0;
  uint64_t source_stride = 0;
  uint64_t dest_stride = 0;
  uint64_t row_bytes = 0;
  bool solid = false;  // equal strides with negligible gaps: a run of rows is one piece
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
  // Target chunk size of whole experts: a tile of work for one thread.
  uint64_t chunk_bytes = 1ull << 20;
  // Neurons in a chunk of listed neurons (FloE's optimum; by transfer_bench 5 to 358 perform alike).
  uint32_t chunk_neurons = 50;
  // Minimum bytes of such a chunk: short rows are not worth a turn of the schedule.
  uint64_t min_chunk_bytes = 512 << 10;
  // Off for comparison: every row of every part on its own.
  bool merge = true;
};

// One requested part: its rows at `source` with `source_stride`.
struct PartCopy {
  const std::byte* source = nullptr;
  uint64_t dest = 0;  // in the slab
  uint64_t source_stride = 0;
  uint64_t dest_stride = 0;
  uint64_t row_bytes = 0;
};

// Plans `rows` of all parts, or those in `neurons` if it is not empty. REQUIRES: at least one part and row,
// rows that fit in 2^32 bytes a chunk.
TransferPlan MakeTransferPlan(const std::vector<PartCopy>& parts, uint32_t rows,
                              std::vector<uint32_t> neurons, uint32_t tile_neurons,
                              const PlanOptions& options);

// Plans `bytes` contiguous bytes, to `dest` of the slab. REQUIRES: above 0, below 2^32.
TransferPlan MakeRangePlan(const std::byte* source, uint64_t dest, uint32_t bytes,
                           const PlanOptions& options);

// Copies one chunk into a slab that begins at `slab`; the bytes are visible to every thread that sees a
// release store made afterwards.
void CopyPlanChunk(const TransferPlan& plan, const PlanChunk& chunk, std::byte* slab);

}  // namespace sluice
