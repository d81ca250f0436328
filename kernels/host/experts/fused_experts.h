#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/block_fetch.h"
#include "kernels/host/experts/block_order.h"
#include "kernels/host/experts/expert_block.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/isa/host_isa.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/work/tiles.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

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
