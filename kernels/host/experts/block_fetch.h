// What one worker of the fused experts fetches ahead of the blocks that it computes, in the order in which it
// will read them. Quantized rows are fetched (RowFetch says how); float rows are bound by memory alone, and
// the hardware follows their order best.
//
// With masks a block waits between its two steps (fused_experts.h): what is read before the masks are known
// is a stream, what they keep is gathered. While masks leave so little out that all rows are read, blocks are
// computed in one step, as without masks: they are `whole`.
//
// Thread safety: each object belongs to one worker.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/expert_block.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/isa/host_isa.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/simd/row_fetch.h"
#include "kernels/host/work/tiles.h"

namespace sluice::host {

// Whether blocks have masks, for which they wait between their steps.
inline bool IsMasked(const ExpertCall& expert) { return expert.sparsity != SparsityOrder::kNone; }

// A fused call as its workers see it: tile t of all jobs' blocks one after the other.
struct FusedCall {
  const MoeExpertsCall* call = nullptr;
  absl::Span<const ExpertJob> jobs;
  uint32_t distance = 0;  // bytes that rows of whole blocks are fetched ahead
};

// A block of a fused expert whose masks are made and whose kept rows are still to be read.
struct WaitingBlock {
  bool waits = false;
  uint32_t slot = 0;    // of the worker's masks and coefficients
  uint32_t expert = 0;  // its job
  uint32_t number = 0;  // of the block in its expert
  // Where in the worker's RowFetch its kept rows begin, how many lines they have, and how many of these are
  // read in another order: each part's, where tokens have lists of their own.
  uint32_t kept_begin = 0;
  uint32_t kept_lines = 0;
  uint32_t in_any_order = 0;
  ExpertBlock block;
};

class BlockFetch {
 public:
  // All outlive it.
  BlockFetch(const KernelTable& kernels, const MemoryTuning& tuning, const ExpertBlocks& blocks,
             RowLists& lists, const Tiles& tiles, uint32_t worker)
      : kernels_(kernels), tuning_(tuning), blocks_(blocks), lists_(lists), tiles_(tiles), worker_(worker) {}

  // Bytes that whole blocks of the jobs are worth fetching ahead: FusedCall::distance.
  static uint32_t DistanceOf(absl::Span<const ExpertJob> jobs, const MemoryTuning& tuning);
  // Whether an expert's rows are fetched ahead at all.
  static bool IsFetched(const ExpertCall& expert);

  // Before a tile is computed: it and the next one are listed. One that does not follow the last begins anew.
  // `waiting`: the block that waits meanwhile.
  void Follow(const FusedCall& fused, uint32_t tile, WaitingBlock* waiting);
  // Whether the tile, which is listed, is computed in one step.
  bool IsWhole(uint32_t tile) const { return tile_whole_[tile % 4]; }
  // Whether all rows of a block are fetched and read in turn from both halves.
  bool ReadsInHalves(const ExpertCall& expert, bool whole) const;
  // What is listed is not what the worker computes next: the next tile begins anew.
  void Restart() { next_tile_ = kNoTile; }

  // What the tile reads at first is read now.
  void ReadFirst(const FusedCall& fused, uint32_t tile, const WaitingBlock& waiting);
  // What the block keeps is read now.
  void ReadKept(const WaitingBlock& waiting);
  // The block's masks are made: what it keeps comes next, and then the tiles up to `through`.
  void ListKept(const FusedCall& fused, WaitingBlock* waiting, uint32_t through);
  // How much the block's masks keep: it decides how later blocks with as many tokens are read.
  void NoteKept(const ExpertBlock& b);

  RowFetch* rows() { return &ahead_; }

 private:
  static constexpr uint32_t kNoTile = UINT32_MAX;

  bool ExpectsWhole(const ExpertJob& job) const;
  void ListTile(const FusedCall& fused, uint32_t tile);
  void ListThrough(const FusedCall& fused, uint32_t tile);
  void AddKept(WaitingBlock* waiting);

  const KernelTable& kernels_;
  const MemoryTuning& tuning_;
  const ExpertBlocks& blocks_;
  RowLists& lists_;
  const Tiles& tiles_;
  const uint32_t worker_;
  RowFetch ahead_;
  uint32_t next_tile_ = kNoTile;         // after the one that is computed, if the run goes on
  uint32_t listed_tile_ = 0;             // up to this one, what is read of the tiles is in `ahead_`
  uint32_t tile_begin_[4] = {};          // where in `ahead_` what is read of tile t begins, at [t % 4]
  bool tile_whole_[4] = {};              // of tile t, at [t % 4]
  float kept_share_[kFusedTokens] = {};  // of the last masked blocks of so many tokens + 1, about eight
};

}  // namespace sluice::host
