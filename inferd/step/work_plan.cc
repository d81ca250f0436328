#include "inferd/step/work_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

WorkPlan::WorkPlan(uint32_t max_tokens, uint32_t max_ranks, uint32_t max_experts)
    : count_(max_experts),
      rows_(uint64_t{max_tokens} * max_ranks),
      slots_(uint64_t{max_tokens} * max_ranks),
      all_rows_(max_tokens),
      common_slots_(max_tokens) {
  demands_.reserve(max_experts);
  begin_.reserve(max_experts);
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

void WorkPlan::PlaceCommon(uint32_t tokens, uint32_t ranks) {
  tokens_ = tokens;
  for (uint32_t token = 0; token < tokens; ++token) {
    common_slots_[token] = token * ranks + ranks - 1;
  }
}

void WorkPlan::BuildDense(uint32_t tokens) {
  demands_.clear();
  begin_.clear();
  PlaceCommon(tokens, 1);
}

absl::Status WorkPlan::Build(const Routing& routing, uint32_t experts, const StepBatch& batch,
                             bool keep_zeros) {
  demands_.clear();
  begin_.clear();
  PlaceCommon(routing.tokens, routing.ranks);
  std::fill(count_.begin(), count_.begin() + experts, 0);
  const auto for_each_pair = [&](auto&& use) {
    for (uint32_t token = 0; token < routing.tokens; ++token) {
      for (uint32_t rank = 0; rank < routing.top_k && !batch.lost(token); ++rank) {
        const uint32_t slot = token * routing.ranks + rank;
        if (keep_zeros || routing.weights[slot] != 0.0f) {
          use(token, slot, static_cast<uint32_t>(routing.ids[slot]));
        }
      }
    }
  };
  bool in_range = true;
  for_each_pair([&](uint32_t, uint32_t, uint32_t expert) {
    in_range = in_range && expert < experts;
    count_[expert < experts ? expert : 0]++;
  });
  if (!in_range) {
    return absl::InternalError(absl::StrCat("the router chose an expert that is not in 0..", experts - 1));
  }
  uint32_t begin = 0;
  for (uint32_t expert = 0; expert < experts; ++expert) {
    const uint32_t tokens = count_[expert];
    count_[expert] = begin;
    if (tokens > 0) {
      demands_.push_back({expert, tokens});
      begin_.push_back(begin);
      begin += tokens;
    }
  }
  for_each_pair([&](uint32_t token, uint32_t slot, uint32_t expert) {
    const uint32_t place = count_[expert]++;
    rows_[place] = token;
    slots_[place] = slot;
  });
  return absl::OkStatus();
}

}  // namespace sluice::inferd
