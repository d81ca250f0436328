// Experts with few tokens (decode), in tiles of one block of 64 neurons: all experts of a layer are one
// region.
//
// With masks a block is computed in two steps, and each worker has one block between them: first the parts
// that are read whole, which make the masks; then, after the first step of the worker's next block, the rows
// that the masks keep. So there are always known rows that are not read yet, to fetch ahead. Quantized rows
// are fetched ahead of the worker (block_fetch.h); float rows are prefetched by lists, each of which ends in
// the first rows of what is read next. The block sums are added to y in block order (block_order.h).
//
// Thread safety: as Backend; tiles write disjoint memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/workspace.h"

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

}  // namespace sluice::cpu
