#include "inferd/step/step_batch.h"

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
  for (uint32_t row = 0; row < tokens.size(); ++row) {
    decodes_.push_back(place.first_position + row >= place.decode_from ? 1 : 0);
    decode_rows_ += decodes_.back();
  }
  return index;
}

void StepBatch::Fail(uint32_t sequence, uint32_t extent) {
  if (failed_extent_[sequence] == kNoExtent) {
    failed_extent_[sequence] = extent;
    ++lost_sequences_;
  }
}

}  // namespace sluice::inferd
