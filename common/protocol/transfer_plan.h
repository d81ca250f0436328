// One transfer in detail, and copies that bypass the cache.
//
// Thread safety: values and free functions, safe from any thread on disjoint bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/encoding.h"

namespace sluice {

// TransferPlan: one transfer in detail: the rows, their addresses in memory and in a slab, the division into
// chunks, and the chunks of each tile.
//
// Parts that lie side by side in a stream and go side by side into the slab travel as one row; a run of rows
// that has the same stride on both sides and (nearly) no gaps travels in one piece, gaps included.
//
// Thread safety: a value; pure functions.

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

// Rows [first, first + rows) of lanes [first_lane, end_lane).
struct PlanChunk {
  uint32_t first = 0;
  uint32_t rows = 0;
  uint32_t tile = 0;
  uint32_t bytes = 0;
  uint32_t first_lane = 0;
  uint32_t end_lane = 0;
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
  // Rows of a part that has another number of them than neurons (down by outputs): all travel, in the last
  // tile. 0: a row a neuron.
  uint32_t own_rows = 0;
};

// Plans `rows` of all parts, or those in `neurons` if it is not empty. REQUIRES: at least one part and row,
// no own rows beside `neurons`, and rows that fit in 2^32 bytes a chunk.
TransferPlan MakeTransferPlan(const std::vector<PartCopy>& parts, uint32_t rows,
                              std::vector<uint32_t> neurons, uint32_t tile_neurons,
                              const PlanOptions& options);

// Plans `bytes` contiguous bytes, to `dest` of the slab. REQUIRES: above 0, below 2^32.
TransferPlan MakeRangePlan(const std::byte* source, uint64_t dest, uint32_t bytes,
                           const PlanOptions& options);

// Copies one chunk into a slab that begins at `slab`; the bytes are visible to every thread that sees a
// release store made afterwards.
void CopyPlanChunk(const TransferPlan& plan, const PlanChunk& chunk, std::byte* slab);

// Copies that bypass the cache: the slab's reader comes later and reads more bytes than a cache holds, so
// ordinary stores would read every line first and evict the compute threads' data.
//
// Thread safety: free functions, safe to call from any thread on disjoint bytes.

// Prefetch distance in bytes. The hardware's prefetcher stops at page borders, and a row is shorter than its
// warm-up. Measured on gathers of 1 KiB rows: 0.70 of memcpy at 512 bytes, 0.75 at 1 KiB, 0.84 at 2 KiB and
// beyond (AMD); on whole experts 1.45 at 1 KiB, 1.55 at 2 KiB, 1.6 at 4 KiB (Intel).
inline constexpr uint64_t kPrefetchDistance = 4096;

// memcpy with stores that bypass the cache. They are ordered only by StreamFence(): call it before the bytes
// are announced. `next`, if not null, is a source that will be copied soon: it is prefetched while the last
// kPrefetchDistance bytes of this one are copied, because gathers of short rows wait for it. If rows are
// shorter than that, `next` is the row that far ahead.
void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes, const std::byte* next = nullptr);
void StreamFence();

}  // namespace sluice
