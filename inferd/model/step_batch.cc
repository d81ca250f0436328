#include "inferd/model/step_batch.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

StepBatch::StepBatch(uint32_t max_tokens, uint32_t max_sequences) {
  ids_.reserve(max_tokens);
  sequence_of_row_.reserve(max_tokens);
  decodes_.reserve(max_tokens);
  sequences_.reserve(max_sequences);
  state_from_.reserve(max_sequences);
  state_to_.reserve(max_sequences);
  failed_extent_.reserve(max_sequences);
  numbers_.reserve(max_sequences);
  before_.reserve(uint64_t{max_sequences} * kTokensBefore);
}

void StepBatch::Clear(uint64_t step) {
  step_ = step;
  ids_.clear();
  sequence_of_row_.clear();
  decodes_.clear();
  decode_rows_ = 0;
  sequences_.clear();
  short_texts_ = 0;
  state_from_.clear();
  state_to_.clear();
  failed_extent_.clear();
  numbers_.clear();
  before_.clear();
  lost_sequences_ = 0;
}

uint32_t StepBatch::Add(absl::Span<const int32_t> tokens, const SequenceInput& place) {
  const uint32_t index = static_cast<uint32_t>(sequences_.size());
  sequences_.push_back(
      {this->tokens(), static_cast<uint32_t>(tokens.size()), place.first_position, place.pages});
  short_texts_ += place.long_sequence ? 0 : 1;
  state_from_.push_back(place.state.from);
  state_to_.push_back(place.state.to);
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  sequence_of_row_.insert(sequence_of_row_.end(), tokens.size(), index);
  failed_extent_.push_back(kNoExtent);
  numbers_.push_back(place.number);
  for (uint32_t i = 1; i <= kTokensBefore; ++i) {
    before_.push_back(i <= place.before.size() ? place.before[place.before.size() - i] : -1);
  }
  for (uint32_t row = 0; row < tokens.size(); ++row) {
    decodes_.push_back(place.first_position + row >= place.decode_from ? 1 : 0);
    decode_rows_ += decodes_.back();
  }
  return index;
}

absl::Span<const int32_t> StepBatch::TokensBack(uint32_t row, absl::Span<int32_t> to) const {
  const uint32_t sequence = sequence_of_row_[row];
  const uint32_t own = row - sequences_[sequence].first_row;
  size_t count = 0;
  for (; count < to.size(); ++count) {
    const int32_t token =
        count <= own ? ids_[row - count] : before_[sequence * kTokensBefore + (count - own - 1)];
    if (token < 0) break;
    to[count] = token;
  }
  return to.first(count);
}

void StepBatch::Fail(uint32_t sequence, uint32_t extent) {
  if (failed_extent_[sequence] == kNoExtent) {
    failed_extent_[sequence] = extent;
    ++lost_sequences_;
  }
}

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
                             bool keep_zeros, uint32_t zero_experts) {
  const uint32_t choices = experts + zero_experts;
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
    in_range = in_range && expert < choices;
    if (expert < experts) count_[expert]++;
  });
  if (!in_range) {
    return absl::InternalError(absl::StrCat("the router chose an expert that is not in 0..", choices - 1));
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
    if (expert >= experts) return;  // its output is its input
    const uint32_t place = count_[expert]++;
    rows_[place] = token;
    slots_[place] = slot;
  });
  return absl::OkStatus();
}

}  // namespace sluice::inferd
