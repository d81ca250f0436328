#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/calls/expert_calls.h"
#include "kernels/host/experts/dense_switch.h"
#include "kernels/host/experts/expert_block.h"
#include "kernels/host/experts/expert_job.h"
#include "kernels/host/experts/fused_experts.h"
#include "kernels/host/experts/two_phase_experts.h"
#include "kernels/host/isa/host_isa.h"
#include "kernels/host/rows/rounded_rows.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/work/tiles.h"
#include "kernels/host/work/workspace.h"

namespace sluice::cpu {

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
  std::vector<ExpertJob> jobs_;
};

}  // namespace sluice::cpu
