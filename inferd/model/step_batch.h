// The rows of one step: tokens, the sequences they belong to, which of them need logits, which are lost.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/recurrent_states.h"
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
  // The tokens before the first position, the nearest last, as many as there are or are needed.
  absl::Span<const int32_t> before;
};

class StepBatch {
 public:
  static constexpr uint32_t kNoExtent = 0xffffffffu;

  // Tokens before a sequence's first row that the batch keeps.
  static constexpr uint32_t kTokensBefore = 7;

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
  // Writes the row's token and those before it, the nearest first; fewer than `to` holds where the text
  // begins, or where none were given. Returns those written. REQUIRES: room for at most kTokensBefore + 1.
  absl::Span<const int32_t> TokensBack(uint32_t row, absl::Span<int32_t> to) const;
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
  std::vector<int32_t> before_;          // kTokensBefore by sequence, the nearest first; -1: none
  uint32_t lost_sequences_ = 0;
};

// Work plan of a layer from the router's choice: the rows of each expert, and the result slot of each (token,
// rank).
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.

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
  // unless `keep_zeros` (their results are read), and ids of the `zero_experts` behind the experts, which
  // return their input. INTERNAL if an id is not in [0, experts + zero_experts).
  absl::Status Build(const Routing& routing, uint32_t experts, const StepBatch& batch,
                     bool keep_zeros = false, uint32_t zero_experts = 0);
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
