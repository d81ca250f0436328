// From the router's choice to work: the rows of each expert, and where each (token, rank) result goes.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"
#include "inferd/step/step_batch.h"

namespace sluice {

// The experts of each token as the routing policy left them, in host memory. Of a row's `ranks` places the
// first `top_k` are routed experts; a last one is that of the expert that every token goes through.
struct Routing {
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t ranks = 0;
  const int32_t* ids = nullptr;    // [tokens, ranks], routed experts best first
  const float* weights = nullptr;  // [tokens, ranks]; 0: the rank is left out
};

class WorkPlan {
 public:
  WorkPlan(uint32_t max_tokens, uint32_t max_ranks, uint32_t max_experts);

  // Groups the pairs (token, routed rank) by expert; rows of lost sequences are left out, and ranks of weight
  // 0 unless `keep_zeros`: their results will be read. INTERNAL if an id is not in [0, experts).
  absl::Status Build(const Routing& routing, uint32_t experts, const StepBatch& batch,
                     bool keep_zeros = false);
  // A layer without routed experts: no demands, one rank.
  void BuildDense(uint32_t tokens);

  // The experts with rows, ascending.
  absl::Span<const ExpertDemand> demands() const { return demands_; }
  // Of demand i: its rows, ascending, and for each the slot token * ranks + rank of its result.
  absl::Span<const uint32_t> rows(uint32_t i) const { return Range(rows_, i); }
  absl::Span<const uint32_t> slots(uint32_t i) const { return Range(slots_, i); }
  // Of the expert that every token goes through: all rows, and the last slot of each.
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
  std::vector<uint32_t> count_;         // [max_experts]: rows, then the next free place
  std::vector<ExpertDemand> demands_;   // at most max_experts
  std::vector<uint32_t> begin_;         // by demand
  std::vector<uint32_t> rows_;          // [max_tokens * max_ranks], grouped by demand
  std::vector<uint32_t> slots_;         // the same
  std::vector<uint32_t> all_rows_;      // [max_tokens]: 0, 1, 2, ...
  std::vector<uint32_t> common_slots_;  // [max_tokens]
};

}  // namespace sluice
