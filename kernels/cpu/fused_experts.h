// Experts with few tokens (decode), in tiles of one block of 64 neurons: all experts of a layer are one
// region.
//
// With masks a block is computed in two steps, and each worker has one block between them: first the parts
// that are read whole, which make the masks; then, after the first step of the worker's next block, the rows
// that the masks keep. So there are always known rows that are not read yet, to fetch ahead. Quantized rows
// are fetched ahead of the worker (BlockFetch); float rows are prefetched by lists, each of which ends in
// the first rows of what is read next. The block sums are added to y in block order (BlockOrder).
//
// Thread safety: as Backend; tiles write disjoint memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/expert_block.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_fetch.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/expert_calls.h"

namespace sluice::cpu {

// Adds the sums of experts' blocks to y in the order of ARITHMETIC.md 3, so that a result has the same bits
// on any number of threads. A block in its turn is added to y directly; an early block is kept until its
// predecessors are added, and no worker waits.

class BlockOrder {
 public:
  // Early blocks are kept in the space's `partials`. All arguments but the limits must outlive it.
  BlockOrder(const BackendLimits& limits, const KernelTable& kernels, const Workspace& space);

  // Starts a call; none of its jobs' blocks is added yet. Each job's `memory` has room for blocks * rows *
  // hidden floats in the partials. Both must live until the next Begin().
  void Begin(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs);

  // True if it is the block's turn to be added to y. Then no other worker adds to the expert before
  // EndTurn().
  bool TakeTurn(uint32_t expert, uint32_t block);
  // Prepares y of a token before block `block`, whose turn it is, is added: a bias starts it. True if y holds
  // a sum; otherwise the block's sum must overwrite it.
  bool StartToken(uint32_t expert, uint32_t block, float* y) const;
  // Ends the turn of a block that has been added to y.
  void EndTurn(uint32_t expert);

  // Finishes a block that had no turn: its sums, [row][sums_stride], are added if it is its turn now, else
  // kept.
  void Finish(uint32_t expert, uint32_t block, const float* sums, uint64_t sums_stride);

 private:
  // Has its own cache line, because workers are at different experts most of the time.
  struct alignas(64) Turn {
    std::atomic<bool> taken{false};  // held by the worker that adds
    uint32_t next_block = 0;         // guarded by `taken`
  };

  float* Kept(const ExpertJob& job, uint32_t block, uint32_t row) const;
  void Add(const ExpertJob& job, uint32_t block, uint32_t row, const float* sum);
  void AddKeptAndRelease(uint32_t expert);

  const KernelTable& kernels_;
  const Workspace& space_;
  const MoeExpertsCall* call_ = nullptr;
  absl::Span<const ExpertJob> jobs_;
  std::unique_ptr<Turn[]> turns_;              // by expert
  std::unique_ptr<std::atomic<bool>[]> kept_;  // by tile: true if its sums are in the partials
};

// Fetches rows ahead for one worker of the fused experts, in the order in which it will read them. Quantized
// rows are fetched (see RowFetch); float rows are bound by memory alone, and the hardware prefetcher follows
// their order best.
//
// With masks a block waits between its two steps (FusedExperts): rows read before the masks are known are
// a stream, rows that the masks keep are gathered. While masks leave so little out that all rows are read,
// blocks are `whole`: computed in one step, as without masks.

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

class FusedExperts {
 public:
  // All arguments but the limits must outlive it.
  FusedExperts(const BackendLimits& limits, const KernelTable& kernels, const MemoryTuning& tuning,
               Workspace& space, Tiles& tiles, RowLists& lists, ExpertBlocks& blocks);
  // Errors: as Scratch. REQUIRES: the workspace has been reserved.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  // Computes the jobs, of at most kFusedTokens rows each, and adds their kept counts to call.active.
  // REQUIRES: the sums of all their blocks fit into Workspace::partials. Sets first_tile and memory.
  void Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs);

 private:
  struct alignas(64) Worker {
    explicit Worker(const BlockFetch& made) : fetch(made) {}
    BlockFetch fetch;
    float* sums = nullptr;  // [kFusedTokens][Workspace::x_stride]: a block of an expert
    // Masks [kFusedTokens] and coefficients [kFusedTokens][64] of two blocks: the current one and the waiting
    // one.
    uint64_t* slot_keep[2] = {};
    float* slot_rows[2][kFusedTokens] = {};
    WaitingBlock waiting;
    uint32_t* kept = nullptr;  // [experts + 8][kFusedTokens]: coefficients of a call that this worker kept
  };

  WaitingBlock Start(uint32_t tile, uint32_t worker);
  void RunTile(uint32_t tile, uint32_t worker);
  void FinishBlock(const WaitingBlock& waiting);
  void FinishWaiting(uint32_t worker);
  void SumKeptCounts() const;

  Workspace& space_;
  Tiles& tiles_;
  const MemoryTuning& tuning_;
  ExpertBlocks& blocks_;
  BlockOrder order_;
  std::vector<Worker> workers_;
  FusedCall fused_;  // the current call
};

}  // namespace sluice::cpu
