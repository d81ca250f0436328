// Work plan of a layer from the router's choice: the rows of each expert, and the result slot of each (token,
// rank).
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "inferd/step/step_batch.h"

namespace sluice::inferd {

// The experts of each token after the routing policy, in host memory. The first `top_k` of a row's `ranks`
// are routed experts; a further last one is the common expert.
struct Routing {
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t ranks = 0;
  const int32_t* ids = nullptr;    // [tokens, ranks], routed experts best first
  const float* weights = nullptr;  // [tokens, ranks]; 0: the rank is skipped
};

class WorkPlan {
 public:
  WorkPlan(uint32_t max_tokens, uint32_t max_ranks, uint32_t max_experts);

  // Groups the pairs (token, routed rank) by expert. Skips rows of lost sequences, and ranks of weight 0
  // unless `keep_zeros` (their results are read). INTERNAL if an id is not in [0, experts).
  absl::Status Build(const Routing& routing, uint32_t experts, const StepBatch& batch,
                     bool keep_zeros = false);
  // Builds the plan of a layer without routed experts: no demands, one rank.
  void BuildDense(uint32_t tokens);

  // Experts with rows, ascending.
  absl::Span<const ExpertDemand> demands() const { return demands_; }
  // Rows of demand i, ascending, and for each its result slot token * ranks + rank.
  absl::Span<const uint32_t> rows(uint32_t i) const { return Range(rows_, i); }
  absl::Span<const uint32_t> slots(uint32_t i) const { return Range(slots_, i); }
  // The common expert: all rows, and the last slot of each.
  absl::Span<const uint32_t> common_rows() const { return absl::MakeConstSpan(all_rows_.data(), tokens_); }
  absl::Span<const uint32_t> common_slots() const {
    return absl::MakeConstSpan(common_slots_.data(), tokens_);
  }

 private:
  absl::Span<const uint32_t> Range(const std::vector<uint32_t>& of, uint32_t i) const {
    return absl::MakeConstSpan(of.data() + begin_[i], demands_[i].tokens);
  }

  void PlaceCommon(uint32_t tokens, uint32_t ranks);

  uint32_t tokens_ = 0;
  std::vector<uint32_t> count_;         // [max_experts]: number of rows, then the next free index
  std::vector<ExpertDemand> demands_;   // at most max_experts
  std::vector<uint32_t> begin_;         // first row by demand
  std::vector<uint32_t> rows_;          // [max_tokens * max_ranks], grouped by demand
  std::vector<uint32_t> slots_;         // result slots, grouped alike
  std::vector<uint32_t> all_rows_;      // [max_tokens]: 0, 1, 2, ...
  std::vector<uint32_t> common_slots_;  // [max_tokens]
};

}  // namespace sluice::inferd
