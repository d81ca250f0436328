#include "inferd/forward/token_draft.h"

#include <utility>

#include "inferd/model/kv_cache.h"

namespace sluice::inferd {

TokenDraft::TokenDraft(const Limits& limits, Queue* queue)
    : limits_(limits), queue_(queue), guessed_(limits.max_sequences, limits.max_sequences) {
  followed_.reserve(limits.max_sequences);
}

bool TokenDraft::Take(const StepBatch& batch) {
  const bool right = IsGuessed(batch);
  counts_.right += right ? 1 : 0;
  Forget();
  return right;
}

void TokenDraft::Forget() {
  guessed_.Clear(0);
  wait_begin_ = 0;  // left by a step that ended with an error
}

bool TokenDraft::IsGuessed(const StepBatch& batch) const {
  if (guessed_.tokens() == 0 || batch.step() != guessed_.step() + 1 || batch.ids() != guessed_.ids() ||
      batch.sequences().size() != guessed_.sequences().size() ||
      batch.short_texts().size() != guessed_.short_texts().size()) {
    return false;
  }
  for (uint32_t i = 0; i < batch.sequences().size(); ++i) {
    const SequenceRows& text = batch.sequences()[i];
    const SequenceRows& guess = guessed_.sequences()[i];
    if (batch.number(i) != guessed_.number(i) || text.rows != guess.rows ||
        text.first_position != guess.first_position || text.pages.data() != guess.pages.data()) {
      return false;
    }
  }
  return true;
}

// Only generating sequences continue for certain, and a draft token needs a position in a page that its
// sequence holds.
absl::Span<const uint32_t> TokenDraft::FindDraftRows(const StepBatch& batch) {
  followed_.clear();
  if (batch.decode_rows() != batch.sequences().size() || batch.decode_rows() != batch.tokens() ||
      batch.tokens() > limits_.rows) {
    return followed_;
  }
  for (const SequenceRows& text : batch.sequences()) {
    const uint32_t next = text.first_position + 1;
    if (next % kPageTokens != 0 && next < limits_.context && !batch.lost(text.first_row)) {
      followed_.push_back(text.first_row);
    }
  }
  return followed_;
}

void TokenDraft::Make(const StepBatch& batch, absl::Span<const int32_t> tokens) {
  guessed_.Clear(batch.step());
  for (uint32_t i = 0; i < followed_.size(); ++i) {
    const uint32_t index = batch.sequence_of(followed_[i]);
    const SequenceRows& text = batch.sequences()[index];
    const SequenceInput place = {.first_position = text.first_position + 1,
                                 .pages = text.pages,
                                 .long_sequence = index >= batch.short_texts().size(),
                                 .decode_from = 0,
                                 .number = batch.number(index)};
    guessed_.Add(tokens.subspan(i, 1), place);
  }
  counts_.made++;
}

void TokenDraft::TakeTiming() {
  if (making_.to.value == 0 || !queue_->IsDone(making_.to)) {
    return;
  }
  if (const absl::StatusOr<double> seconds = queue_->Seconds(making_.from, making_.to); seconds.ok()) {
    timing_.AddDraft(static_cast<int64_t>(*seconds * 1e9));
  }
  making_ = {};
}

void TokenDraft::EndWait() {
  TakeTiming();
  if (const int64_t begin = std::exchange(wait_begin_, 0); begin != 0) {
    timing_.AddWait(wait_missing_, clock_.NowNanos() - begin);
  }
}

}  // namespace sluice::inferd
