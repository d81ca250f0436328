#include "kernels/host/experts/experts.h"

#include "common/status.h"

namespace sluice::cpu {

Experts::Experts(const BackendLimits& limits, const KernelTable& kernels, const MemoryTuning& tuning,
                 Workspace& space, Tiles& tiles, RoundedRows& rounded, RowLists& lists)
    : space_(space),
      tiles_(tiles),
      rounded_(rounded),
      blocks_(kernels, space, lists),
      fused_(limits, kernels, tuning, space, tiles, lists, blocks_),
      two_phase_(kernels, space, tiles, lists, blocks_) {
  jobs_.reserve(limits.experts + 8);
}

absl::Status Experts::Reserve(const BackendLimits& limits, Scratch* scratch) {
  RETURN_IF_ERROR(blocks_.Reserve(limits, tiles_.threads(), scratch));
  RETURN_IF_ERROR(fused_.Reserve(limits, scratch));
  return two_phase_.Reserve(limits, scratch);
}

// Rounds x for every group size of gate or up parts.
void Experts::PrepareRows(const MoeExpertsCall& call) {
  for (const ExpertCall& expert : call.experts) {
    rounded_.RequestForm(expert.gate.encoding);
    rounded_.RequestForm(expert.up.encoding);
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    space_.x_rows[t] = call.x.Row(t);
  }
  rounded_.Make(space_.x_rows, call.tokens, call.hidden);
}

void Experts::Run(const MoeExpertsCall& call) {
  PrepareRows(call);
  for (const ExpertCall& expert : call.experts) {
    for (const uint32_t slot : expert.slots) {
      if (call.active != nullptr && expert.neuron_begin == 0) {
        call.active[slot] = 0;
      }
    }
  }
  uint64_t floats = 0;  // used by the fused experts' sums so far
  const auto sums_of = [&](const ExpertCall& expert) {
    return uint64_t{BlocksOf(expert)} * expert.rows.size() * call.hidden;
  };
  for (const bool few : {true, false}) {
    jobs_.clear();
    floats = 0;
    for (const ExpertCall& expert : call.experts) {
      const bool is_fused =
          expert.rows.size() <= kFusedTokens && floats + sums_of(expert) <= Workspace::kPartialFloats;
      floats += is_fused ? sums_of(expert) : 0;
      if (is_fused == few) {
        ExpertJob job;
        job.call = &expert;
        job.blocks = BlocksOf(expert);
        job.dense_above = dense_switch_.Above(expert);
        jobs_.push_back(job);
      }
    }
    if (!jobs_.empty()) {
      few ? fused_.Run(call, absl::MakeSpan(jobs_)) : two_phase_.Run(call, absl::MakeSpan(jobs_));
    }
  }
}

}  // namespace sluice::cpu
