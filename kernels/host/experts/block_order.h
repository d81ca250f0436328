// Adds the sums of experts' blocks to y in the order of ARITHMETIC.md 3, whichever worker made them first: so
// a result has the same bits on any number of threads. A block whose turn it is goes straight to y; one that
// comes early is kept until those before it are in, and nobody waits.
//
// Thread safety: between two Begin()s every worker may call, for a block each.
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

namespace sluice::host {

class BlockOrder {
 public:
  // Blocks that come early are kept in the space's `partials`. All but the limits outlive it.
  BlockOrder(const BackendLimits& limits, const KernelTable& kernels, const Workspace& space);

  // No block of the call's jobs is added yet. Each job's `memory` has room for blocks * rows * hidden floats
  // in them. Both live until the next Begin().
  void Begin(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs);

  // Whether it is the block's turn to be added to y. If so nobody else adds to the expert before EndTurn().
  bool TakeTurn(uint32_t expert, uint32_t block);
  // y of a token before block `block`, whose turn it is, is added to it: a bias starts it. Whether it holds
  // anything; else the block's sum is to be written over it.
  bool StartToken(uint32_t expert, uint32_t block, float* y) const;
  // The block whose turn it was is in y.
  void EndTurn(uint32_t expert);

  // A block that has got no turn: its sums, [row][sums_stride], are added now if it is its turn by now, else
  // kept.
  void Finish(uint32_t expert, uint32_t block, const float* sums, uint64_t sums_stride);

 private:
  // On a cache line of its own, because workers are at different experts most of the time.
  struct alignas(64) Turn {
    std::atomic<bool> taken{false};  // by a worker that adds
    uint32_t next_block = 0;         // guarded by `taken`
  };

  float* Kept(const ExpertJob& job, uint32_t block, uint32_t row) const;
  void Add(const ExpertJob& job, uint32_t block, uint32_t row, const float* sum);
  void AddKeptAndLetGo(uint32_t expert);

  const KernelTable& kernels_;
  const Workspace& space_;
  const MoeExpertsCall* call_ = nullptr;
  absl::Span<const ExpertJob> jobs_;
  std::unique_ptr<Turn[]> turns_;              // by expert
  std::unique_ptr<std::atomic<bool>[]> kept_;  // by tile: its sums are in the partials
};

}  // namespace sluice::host
