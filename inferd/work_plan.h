// From the router's choice to work: the rows of each expert, and where each (token, rank) result goes.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#ifndef SLUICE_INFERD_WORK_PLAN_H_
#define SLUICE_INFERD_WORK_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/residency/residency.h"
#include "inferd/step_batch.h"

namespace sluice {

// The experts of each token as the routing policy left them, in host memory.
struct Routing {
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  const int32_t* ids = nullptr;    // [tokens, top_k], best first
  const float* weights = nullptr;  // [tokens, top_k]; 0: the rank is left out
};

class WorkPlan {
 public:
  WorkPlan(uint32_t max_tokens, uint32_t max_top_k, uint32_t max_experts);

  // Groups the pairs (token, rank) by expert; rows of lost sequences and ranks of weight 0 are left out.
  // INTERNAL if an id is not in [0, experts).
  absl::Status Build(const Routing& routing, uint32_t experts, const StepBatch& batch);

  // The experts with rows, ascending.
  absl::Span<const ExpertDemand> demands() const { return demands_; }
  // Of demand i: its rows, ascending, and for each the slot token * top_k + rank of its result.
  absl::Span<const uint32_t> rows(uint32_t i) const { return Range(rows_, i); }
  absl::Span<const uint32_t> slots(uint32_t i) const { return Range(slots_, i); }

 private:
  absl::Span<const uint32_t> Range(const std::vector<uint32_t>& of, uint32_t i) const {
    return absl::MakeConstSpan(of.data() + begin_[i], demands_[i].tokens);
  }

  std::vector<uint32_t> count_;        // [max_experts]: rows, then the next free place
  std::vector<ExpertDemand> demands_;  // at most max_experts
  std::vector<uint32_t> begin_;        // by demand
  std::vector<uint32_t> rows_;         // [max_tokens * max_top_k], grouped by demand
  std::vector<uint32_t> slots_;        // the same
};

}  // namespace sluice

#endif  // SLUICE_INFERD_WORK_PLAN_H_
