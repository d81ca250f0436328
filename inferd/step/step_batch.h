// The rows of one step: tokens, the sequences they belong to, which of them need logits, which are lost.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/model/delta_states.h"
#include "kernels/ops.h"

namespace sluice::inferd {

// A sequence's data for a step besides its tokens.
struct SequenceInput {
  uint32_t first_position = 0;
  absl::Span<const uint32_t> pages;  // its page table; must live as long as the batch
  StateSlots state;
  bool long_sequence = false;  // longer than the model's short rope table allows
  // First position of generated tokens, for policies that save work in decoding only. Rows reported by a
  // scoring request count as generated.
  uint32_t decode_from = 0xffffffffu;
  uint64_t number = 0;  // sequence number, ascending in order of arrival; 0: none
};

class StepBatch {
 public:
  static constexpr uint32_t kNoExtent = 0xffffffffu;

  StepBatch(uint32_t max_tokens, uint32_t max_sequences);

  void Clear(uint64_t step);

  // Adds the rows of a sequence. Short sequences come before long ones. Returns the sequence's index in the
  // batch.
  uint32_t Add(absl::Span<const int32_t> tokens, const SequenceInput& place);

  // Fails a sequence because weights it needs, in `extent`, are damaged. Its rows are computed no further.
  void Fail(uint32_t sequence, uint32_t extent);

  uint64_t step() const { return step_; }
  uint32_t tokens() const { return static_cast<uint32_t>(ids_.size()); }
  absl::Span<const int32_t> ids() const { return ids_; }
  absl::Span<const SequenceRows> sequences() const { return sequences_; }
  absl::Span<const SequenceRows> short_texts() const { return sequences().first(short_texts_); }
  absl::Span<const SequenceRows> long_texts() const { return sequences().subspan(short_texts_); }
  // Slots of recurrent state by sequence, before and after the step.
  absl::Span<const uint32_t> state_from() const { return state_from_; }
  absl::Span<const uint32_t> state_to() const { return state_to_; }
  uint32_t sequence_of(uint32_t row) const { return sequence_of_row_[row]; }
  uint64_t number(uint32_t sequence) const { return numbers_[sequence]; }
  bool decodes(uint32_t row) const { return decodes_[row] != 0; }
  uint32_t decode_rows() const { return decode_rows_; }
  bool lost(uint32_t row) const { return failed_extent_[sequence_of_row_[row]] != kNoExtent; }
  // The damaged extent of a failed sequence, or kNoExtent.
  uint32_t failed_extent(uint32_t sequence) const { return failed_extent_[sequence]; }
  bool any_lost() const { return lost_sequences_ > 0; }
  bool all_lost() const { return lost_sequences_ == sequences_.size(); }

 private:
  uint64_t step_ = 0;
  std::vector<int32_t> ids_;               // [tokens]
  std::vector<uint32_t> sequence_of_row_;  // [tokens]
  std::vector<uint8_t> decodes_;           // [tokens]: 1 if the row was generated
  uint32_t decode_rows_ = 0;
  std::vector<SequenceRows> sequences_;
  uint32_t short_texts_ = 0;             // number of short sequences
  std::vector<uint32_t> state_from_;     // by sequence
  std::vector<uint32_t> state_to_;       // by sequence
  std::vector<uint32_t> failed_extent_;  // by sequence
  std::vector<uint64_t> numbers_;        // by sequence
  uint32_t lost_sequences_ = 0;
};

}  // namespace sluice::inferd
