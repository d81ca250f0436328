// The experts of a MoeExperts call: experts with few tokens are fused, the others run in two phases. Both
// compute the same bits.
//
// Thread safety: as Backend.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/expert_block.h"
#include "kernels/cpu/fused_experts.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/expert_calls.h"
#include "kernels/ops.h"

namespace sluice::cpu {

// The share of kept coefficients from which all of an expert's rows are read: measured switches, or the
// defaults.

class DenseSwitch {
 public:
  // Replaces earlier entries. INVALID_ARGUMENT above kMaxSparseSwitches.
  absl::Status Set(absl::Span<const SparseSwitchEntry> entries);
  // Returns the share for an expert, by its number of rows. 1 if it has no masks.
  float Above(const ExpertCall& expert) const;

 private:
  std::vector<SparseSwitchEntry> entries_;
};

// Experts with many tokens (prefill), in two phases of register tiles: the coefficients of all neurons, then
// columns of y. The bits equal those of the fused experts.

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

  // The first phase alone. Sets first_tile and memory.
  void MakeCoefficients(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs);
  // The coefficients of token `row` of the job's expert, from block `block` on; 0 where masked.
  float* CoefficientsOf(const ExpertJob& job, uint32_t row, uint32_t block) const {
    return coefficients_ + (job.memory + row) * coefficient_stride_ + uint64_t{block} * kNeuronBlock;
  }

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

  const KernelTable& kernels_;
  Workspace& space_;
  Tiles& tiles_;
  RowLists& lists_;
  ExpertBlocks& blocks_;
  float* coefficients_ = nullptr;  // [Workspace::packed_rows][expert_width rounded up to 64]
  uint64_t coefficient_stride_ = 0;
  uint32_t* block_kept_ = nullptr;  // [MaxBlocks]: coefficients kept in each block of all experts
};

// Experts whose down part is stored by outputs, in three phases: the coefficients of all neurons, these
// rounded or packed as rows, and products of them with the rows of down in tiles.

class OutputExperts {
 public:
  // All arguments must outlive it.
  OutputExperts(const KernelTable& kernels, const MemoryTuning& tuning, Workspace& space, Tiles& tiles,
                RowLists& lists, TwoPhaseExperts& coefficients)
      : kernels_(kernels),
        tuning_(tuning),
        space_(space),
        tiles_(tiles),
        lists_(lists),
        coefficients_(coefficients) {}
  // Errors: as Scratch. REQUIRES: the workspace has been reserved.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  // As TwoPhaseExperts::Run().
  void Run(const MoeExpertsCall& call, absl::Span<ExpertJob> jobs);

 private:
  void PrepareCoefficients(const ExpertJob& job, uint32_t worker);
  void RunTile(const MoeExpertsCall& call, const ExpertJob& job, uint32_t number, uint32_t worker);
  void Multiply(const ExpertJob& job, const RowList& list, uint32_t worker, float* const* y);
  float* PanelsOf(const ExpertJob& job) const { return panels_ + job.memory * panel_stride_; }

  const KernelTable& kernels_;
  const MemoryTuning& tuning_;
  Workspace& space_;
  Tiles& tiles_;
  RowLists& lists_;
  TwoPhaseExperts& coefficients_;
  RoundedForm rounded_;      // row job.memory + i: token i of the job's expert
  float* panels_ = nullptr;  // [Workspace::packed_rows][panel_stride_]
  uint64_t panel_stride_ = 0;
};

class Experts {
 public:
  // All arguments but the limits must outlive it.
  Experts(const BackendLimits& limits, const KernelTable& kernels, const MemoryTuning& tuning,
          Workspace& space, Tiles& tiles, RoundedRows& rounded, RowLists& lists);
  // Errors: as Scratch. REQUIRES: the workspace has been reserved.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  DenseSwitch& dense_switch() { return dense_switch_; }

  void Run(const MoeExpertsCall& call);

 private:
  void PrepareRows(const MoeExpertsCall& call);

  Workspace& space_;
  Tiles& tiles_;
  RoundedRows& rounded_;
  DenseSwitch dense_switch_;
  ExpertBlocks blocks_;
  FusedExperts fused_;
  TwoPhaseExperts two_phase_;
  OutputExperts outputs_;
  std::vector<ExpertJob> jobs_;
};

}  // namespace sluice::cpu
