// The rows of one step: tokens, the sequences they belong to, which of them need logits, which are lost.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#ifndef SLUICE_INFERD_STEP_BATCH_H_
#define SLUICE_INFERD_STEP_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"

namespace sluice {

class StepBatch {
 public:
  static constexpr uint32_t kNoExtent = 0xffffffffu;

  StepBatch(uint32_t max_tokens, uint32_t max_sequences);

  void Clear(uint64_t step);

  // Adds the rows of a sequence: `tokens` at positions first_position.. ; `pages` is its page table and must
  // live as long as the batch is used. Returns the sequence's index in the batch.
  uint32_t Add(absl::Span<const int32_t> tokens, uint32_t first_position, absl::Span<const uint32_t> pages);

  // The sequence cannot go on: weights it needs, in `extent`, are damaged. Its rows are computed no further.
  void Fail(uint32_t sequence, uint32_t extent);

  uint64_t step() const { return step_; }
  uint32_t tokens() const { return static_cast<uint32_t>(ids_.size()); }
  absl::Span<const int32_t> ids() const { return ids_; }
  absl::Span<const SequenceRows> sequences() const { return sequences_; }
  uint32_t sequence_of(uint32_t row) const { return sequence_of_row_[row]; }
  bool lost(uint32_t row) const { return failed_extent_[sequence_of_row_[row]] != kNoExtent; }
  // The damaged extent that a sequence met, or kNoExtent.
  uint32_t failed_extent(uint32_t sequence) const { return failed_extent_[sequence]; }
  bool any_lost() const { return lost_sequences_ > 0; }
  bool all_lost() const { return lost_sequences_ == sequences_.size(); }

 private:
  uint64_t step_ = 0;
  std::vector<int32_t> ids_;               // [tokens]
  std::vector<uint32_t> sequence_of_row_;  // [tokens]
  std::vector<SequenceRows> sequences_;
  std::vector<uint32_t> failed_extent_;  // by sequence
  uint32_t lost_sequences_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_INFERD_STEP_BATCH_H_
