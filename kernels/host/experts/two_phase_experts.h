// Experts with many tokens (prefill), in two phases of register tiles: the coefficients of all neurons, then
// columns of y. The bits equal those of the fused experts.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/expert_block.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/work/tiles.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

class TwoPhaseExperts {
 public:
  // All arguments must outlive it.
  TwoPhaseExperts(const KernelTable& kernels, Workspace& space, Tiles& tiles, RowLists& lists,
                  ExpertBlocks& blocks)
      : kernels_(kernels), space_(space), tiles_(tiles), lists_(lists), blocks_(blocks) {}
  // Errors: as Scratch. REQUIRES: the workspace has been reserved.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  // Computes the jobs and adds their kept counts to call.active. Sets first_tile, memory and down_by_lists.
  void Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs);

 private:
  // The work of a tile of the second phase.
  struct DownPart {
    uint32_t first = 0;  // first token of the expert
    uint32_t tokens = 0;
    uint32_t column = 0;
    uint32_t columns = 0;
  };

  static DownPart PartOf(const ExpertCall& expert, bool by_lists, uint32_t part);
  void PackRows(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint64_t rows);
  void CoefficientTile(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint32_t tile,
                       uint32_t worker);
  uint32_t PlanDownTiles(absl::Span<ExpertJob> jobs) const;
  void DownTile(const MoeExpertsCall& call, absl::Span<const ExpertJob> jobs, uint32_t tile, uint32_t worker);
  void DownByLists(const ExpertBlock& b, const DownPart& p, uint32_t worker);
  void DownColumns(const RowList& list, const DownPart& p, const float* const* c, uint32_t worker,
                   float* const* y);
  float* CoefficientsOf(const ExpertJob& job, uint32_t row, uint32_t block) const {
    return coefficients_ + (job.memory + row) * coefficient_stride_ + uint64_t{block} * kNeuronBlock;
  }

  const KernelTable& kernels_;
  Workspace& space_;
  Tiles& tiles_;
  RowLists& lists_;
  ExpertBlocks& blocks_;
  float* coefficients_ = nullptr;  // [Workspace::packed_rows][expert_width rounded up to 64]
  uint64_t coefficient_stride_ = 0;
  uint32_t* block_kept_ = nullptr;  // [MaxBlocks]: coefficients kept in each block of all experts
};

}  // namespace sluice::cpu
