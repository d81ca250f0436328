#include "inferd/engine/engine_step.h"

#include <algorithm>

#include "common/base/status.h"
#include "inferd/forward/drafter.h"

namespace sluice::inferd {

StepRows::StepRows(const ForwardOptions& limits, uint32_t vocab, uint32_t short_rope_limit)
    : vocab_(vocab),
      short_text_limit_(short_rope_limit),
      logit_rows_(limits.logit_rows),
      sampler_(vocab),
      batch_(limits.max_tokens, limits.max_sequences) {
  running_.reserve(limits.max_sequences);
  wants_.reserve(limits.max_tokens);
  want_rows_.reserve(limits.logit_rows);
  with_drafts_.reserve(1 + Draft::kMaxTokens);
}

void StepRows::Begin(uint64_t step, const StepPlan& plan, KvCache* kv, const RecurrentStates& states,
                     absl::FunctionRef<Sequence*(SequenceId)> find) {
  batch_.Clear(step);
  running_.clear();
  wants_.clear();
  candidates_ = 1;
  whole_logits_ = false;
  for (const bool long_texts : {false, true}) {
    for (const ScheduledRows& rows : plan.sequences) {
      Sequence* sequence = find(rows.id);
      if (IsLongText(*sequence) == long_texts) {
        Add(rows, sequence, kv, states);
      }
    }
  }
}

void StepRows::Add(const ScheduledRows& rows, Sequence* sequence, KvCache* kv,
                   const RecurrentStates& states) {
  const uint32_t first_row = batch_.tokens();
  absl::Span<const int32_t> tokens =
      sequence->tokens().subspan(rows.first_position, rows.known() - rows.first_position);
  if (!rows.drafts.empty()) {
    with_drafts_.assign(tokens.begin(), tokens.end());
    with_drafts_.insert(with_drafts_.end(), rows.drafts.begin(), rows.drafts.end());
    tokens = with_drafts_;
  }
  const uint32_t index =
      batch_.Add(tokens, {rows.first_position, kv->pages().table(rows.slot), states.slots(rows.slot),
                          IsLongText(*sequence), sequence->decode_from(), sequence->header().id,
                          sequence->tokens().first(rows.first_position)});
  running_.push_back({sequence, rows});
  const uint32_t logit_rows = sequence->LogitRowsOf(rows);
  for (uint32_t row = rows.rows - logit_rows; row < rows.rows; ++row) {
    wants_.push_back({first_row + row, index, rows.first_position + row});
  }
  candidates_ = logit_rows > 0 ? std::max(candidates_, sequence->candidates()) : candidates_;
  whole_logits_ = whole_logits_ || (logit_rows > 0 && sequence->WantsLogits());
}

bool StepRows::IsLongText(const Sequence& sequence) const {
  return short_text_limit_ > 0 && sequence.tokens().size() > short_text_limit_;
}

absl::Status StepRows::Deliver(Forward* forward, absl::FunctionRef<absl::Status()> check,
                               absl::FunctionRef<absl::Time()> now) {
  for (size_t begin = 0; begin < wants_.size();) {
    want_rows_.clear();
    size_t end = begin;
    while (end < wants_.size() && want_rows_.size() < logit_rows_) {
      want_rows_.push_back(wants_[end++].row);
    }
    ASSIGN_OR_RETURN(const LogitRows logits, forward->Logits(want_rows_, candidates_, whole_logits_));
    if (begin == 0) {
      RETURN_IF_ERROR(check());
    }
    Hand(logits, begin, end, now());
    begin = end;
  }
  return absl::OkStatus();
}

// True if the row holds the sequence's own token: always but for drafts, each of which is right if it equals
// the token that the row before it gave.
bool StepRows::IsRight(const LogitWant& want) const {
  const absl::Span<const int32_t> tokens = running_[want.sequence].sequence->tokens();
  return want.position < tokens.size() && batch_.ids()[want.row] == tokens[want.position];
}

// Gives the logits of wants_[begin, end) to their sequences, each sequence's rows together, but one by one if
// they are drafts'.
void StepRows::Hand(const LogitRows& logits, size_t begin, size_t end, absl::Time now) {
  for (size_t i = begin; i < end;) {
    const Running& running = running_[wants_[i].sequence];
    size_t next = i + 1;
    while (running.rows.drafts.empty() && next < end && wants_[next].sequence == wants_[i].sequence) {
      ++next;
    }
    Sequence* sequence = running.sequence;
    const bool lost = batch_.failed_extent(wants_[i].sequence) != StepBatch::kNoExtent;
    if (!lost && sequence->state() == Sequence::State::kRunning && IsRight(wants_[i])) {
      sequence->Take({&logits, static_cast<uint32_t>(i - begin), static_cast<uint32_t>(next - i),
                      wants_[i].position, vocab_},
                     now, &sampler_);
    }
    i = next;
  }
}

absl::Status StepHooks::BeforeChoice(const RouterState& state) {
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeChoice(state);
}

bool StepHooks::CanDeferRouting(uint32_t layer) const {
  return trace_ == nullptr && (prefetcher_ == nullptr || prefetcher_->CanDeferRouting(layer));
}

absl::Status StepHooks::AfterRouter(const RouterState& state) {
  moved_on_();
  if (trace_ != nullptr) {
    RETURN_IF_ERROR(trace_->AfterRouter(state));
  }
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterRouter(state);
}

absl::Status StepHooks::BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeExperts(layer, args);
}

absl::Status StepHooks::AfterLayer(const LayerEnd& end) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterLayer(end);
}

bool StepHooks::WantsLookAhead(uint32_t layer) const {
  return prefetcher_ != nullptr && prefetcher_->WantsLookAhead(layer);
}

absl::Status StepHooks::LookAhead(const RouterState& state) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_->LookAhead(state);
}

bool StepHooks::WantsNextTokens() { return prefetcher_ != nullptr && prefetcher_->WantsNextTokens(); }

absl::Status StepHooks::NextTokens(const RouterState& state) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_->NextTokens(state);
}

}  // namespace sluice::inferd
