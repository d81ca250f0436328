// Fetches rows ahead for one worker of the fused experts, in the order in which it will read them. Quantized
// rows are fetched (see RowFetch); float rows are bound by memory alone, and the hardware prefetcher follows
// their order best.
//
// With masks a block waits between its two steps (fused_experts.h): rows read before the masks are known are
// a stream, rows that the masks keep are gathered. While masks leave so little out that all rows are read,
// blocks are `whole`: computed in one step, as without masks.
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

namespace sluice::cpu {

// True if blocks have masks and wait for them between their steps.
inline bool IsMasked(const ExpertCall& expert) { return expert.sparsity != SparsityOrder::kNone; }

// A fused call as its workers see it: tiles number the blocks of all jobs, one job after the other.
struct FusedCall {
  const MoeExpertsCall* call = nullptr;
  absl::Span<const ExpertJob> jobs;
  uint32_t distance = 0;  // fetch distance for whole blocks, in bytes
};

// A block of a fused expert whose masks are made and whose kept rows are still to be read.
struct WaitingBlock {
  bool waits = false;
  uint32_t slot = 0;    // index into the worker's masks and coefficients
  uint32_t expert = 0;  // its job
  uint32_t number = 0;  // index of the block in its expert
  // Begin of its kept rows in the worker's RowFetch, their number of lines, and the number of lines read in
  // another order: a part's lines, where each token has its own list.
  uint32_t kept_begin = 0;
  uint32_t kept_lines = 0;
  uint32_t in_any_order = 0;
  ExpertBlock block;
};

class BlockFetch {
 public:
  // All arguments must outlive it.
  BlockFetch(const KernelTable& kernels, const MemoryTuning& tuning, const ExpertBlocks& blocks,
             RowLists& lists, const Tiles& tiles, uint32_t worker)
      : kernels_(kernels), tuning_(tuning), blocks_(blocks), lists_(lists), tiles_(tiles), worker_(worker) {}

  // Fetch distance in bytes for whole blocks of the jobs: FusedCall::distance.
  static uint32_t DistanceOf(absl::Span<const ExpertJob> jobs, const MemoryTuning& tuning);
  // True if an expert's rows are fetched ahead at all.
  static bool IsFetched(const ExpertCall& expert);

  // Lists a tile and the next one, before the tile is computed. Starts anew if the tile does not follow the
  // last. `waiting`: the block that waits meanwhile.
  void Follow(const FusedCall& fused, uint32_t tile, WaitingBlock* waiting);
  // True if the listed tile is computed in one step.
  bool IsWhole(uint32_t tile) const { return tile_whole_[tile % 4]; }
  // True if all rows of a block are fetched and read in turn from both halves.
  bool ReadsInHalves(const ExpertCall& expert, bool whole) const;
  // Starts anew at the next tile, because the worker's next tile is not the listed one.
  void Restart() { next_tile_ = kNoTile; }

  // Notes that the tile's first rows are read now.
  void ReadFirst(const FusedCall& fused, uint32_t tile, const WaitingBlock& waiting);
  // Notes that the block's kept rows are read now.
  void ReadKept(const WaitingBlock& waiting);
  // Lists the block's kept rows once its masks are made, then the tiles up to `through`.
  void ListKept(const FusedCall& fused, WaitingBlock* waiting, uint32_t through);
  // Notes the share that the block's masks keep. It decides how later blocks with as many tokens are read.
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
  uint32_t next_tile_ = kNoTile;         // follows the current tile, if the run goes on
  uint32_t listed_tile_ = 0;             // last tile whose rows are in `ahead_`
  uint32_t tile_begin_[4] = {};          // begin of tile t's rows in `ahead_`, at [t % 4]
  bool tile_whole_[4] = {};              // tile t is whole, at [t % 4]
  float kept_share_[kFusedTokens] = {};  // share kept by about the last eight masked blocks, by tokens - 1
};

}  // namespace sluice::cpu
