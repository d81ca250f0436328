#include "inferd/schedule/score_sequence.h"

#include <algorithm>

namespace sluice::inferd {
namespace {

// Bytes of full rows that one step may add to a sink, which buffers them until its consumer has room.
constexpr uint64_t kLogitBytesPerStep = 8ull << 20;

Sequence::Header HeaderOf(SequenceId id, const ScoreSpec& spec, absl::Time now) {
  return {id, spec.request_id, spec.client, 0, spec.deadline, now, absl::InfiniteFuture()};
}

uint32_t RowLimit(const ScoreSpec& spec, uint32_t vocab) {
  if (!spec.want_logits) {
    return 0;
  }
  return static_cast<uint32_t>(std::max<uint64_t>(1, kLogitBytesPerStep / (uint64_t{vocab} * sizeof(float))));
}

}  // namespace

ScoreSequence::ScoreSequence(SequenceId id, ScoreSpec spec, std::shared_ptr<ScoreSink> sink, absl::Time now,
                             uint32_t vocab)
    : Sequence(HeaderOf(id, spec, now), std::move(spec.input)),
      targets_(std::move(spec.targets)),
      want_logits_(spec.want_logits),
      row_limit_(RowLimit(spec, vocab)),
      sink_(std::move(sink)) {
  argmax_.reserve(prompt_tokens_);
  target_logprobs_.reserve(targets_.size());
}

uint32_t ScoreSequence::LogitRowsOf(const ScheduledRows& rows) const {
  const uint32_t end = rows.first_position + rows.rows;
  return end - std::clamp(reported_, rows.first_position, end);  // a preempted sequence reports no row twice
}

void ScoreSequence::Take(const LogitSlice& slice, absl::Time now, Sampler*) {
  if (!CheckFinite(slice)) {
    return;
  }
  const LogitRows& logits = *slice.logits;
  argmax_.clear();
  target_logprobs_.clear();
  for (uint32_t i = 0; i < slice.rows; ++i) {
    const uint64_t row = slice.first + i;
    argmax_.push_back(logits.ids[row * logits.k]);
    if (!targets_.empty()) {
      // In double: the difference of two large floats would lose digits that add up in a perplexity.
      const float logit = logits.logits[row * slice.vocab + targets_[slice.position + i]];
      target_logprobs_.push_back(static_cast<float>(double{logit} - double{logits.log_sum_exp[row]}));
    }
  }
  absl::Span<const float> rows;
  if (want_logits_) {
    rows = absl::MakeConstSpan(logits.logits + uint64_t{slice.first} * slice.vocab,
                               uint64_t{slice.rows} * slice.vocab);
  }
  sink_->OnRows(slice.position, argmax_, target_logprobs_, rows);
  reported_ = slice.position + slice.rows;
  if (reported_ == prompt_tokens_) {
    first_token_ = last_token_ = now;
    state_ = State::kFinished;
  }
}

void ScoreSequence::Finish() { sink_->OnFinished({prompt_tokens_, 0, 0}, MakeTimings()); }

void ScoreSequence::Fail(const absl::Status& status) { sink_->OnError(status); }

}  // namespace sluice::inferd
