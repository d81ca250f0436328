#include "inferd/forward/sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

void Sequence::NotePrefix(uint32_t positions) {
  if (admitted_ == absl::InfinitePast()) {
    cached_tokens_ = std::min(positions, prompt_tokens_);
  }
}

void Sequence::Admit(absl::Time now) {
  if (admitted_ != absl::InfinitePast()) {
    return;  // admitted again after a preemption
  }
  admitted_ = now;
  OnStarted(QueueSeconds());
}

// `created` is real time. A virtual clock stands still while a request waits, so the difference is
// meaningless and may be negative.
double Sequence::QueueSeconds() const {
  return std::max(0.0, absl::ToDoubleSeconds(admitted_ - header_.created));
}

void Sequence::AddCost(const StepCost& cost, double share) {
  cost_.stall_seconds += cost.stall_seconds;  // every sequence of the step waits in full, not for a share
  cost_.expert_requests += cost.expert_requests * share;
  cost_.expert_hits += cost.expert_hits * share;
  cost_.bytes_ssd += cost.bytes_ssd * share;
  cost_.bytes_link += cost.bytes_link * share;
}

bool Sequence::CheckFinite(const LogitSlice& slice) {
  for (uint32_t row = slice.first; row < slice.first + slice.rows; ++row) {
    if (!std::isfinite(slice.logits->log_sum_exp[row])) {
      error_ = absl::InternalError(
          absl::StrCat("the logits of position ", slice.position + row - slice.first, " are not finite"));
      state_ = State::kFailed;
      return false;
    }
  }
  return true;
}

Timings Sequence::MakeTimings() const {
  Timings timings;
  if (admitted_ != absl::InfinitePast()) {
    timings.queue_seconds = QueueSeconds();
  }
  if (first_token_ != absl::InfinitePast()) {
    timings.prompt_seconds = absl::ToDoubleSeconds(first_token_ - admitted_);
    timings.decode_seconds = absl::ToDoubleSeconds(last_token_ - first_token_);
  }
  timings.stall_seconds = cost_.stall_seconds;
  timings.expert_requests = static_cast<uint64_t>(std::llround(cost_.expert_requests));
  timings.expert_hits = static_cast<uint64_t>(std::llround(cost_.expert_hits));
  timings.bytes_ssd = static_cast<uint64_t>(std::llround(cost_.bytes_ssd));
  timings.bytes_link = static_cast<uint64_t>(std::llround(cost_.bytes_link));
  return timings;
}

namespace {

// The failure function of Knuth, Morris and Pratt: border[n] is the length of the longest proper prefix of
// the first n bytes that is also their end. With it every byte is processed once, also in repetitive texts.
std::vector<uint32_t> Borders(const std::string& text) {
  std::vector<uint32_t> border(text.size() + 1, 0);
  for (size_t length = 2; length <= text.size(); ++length) {
    uint32_t k = border[length - 1];
    while (k > 0 && text[k] != text[length - 1]) {
      k = border[k];
    }
    border[length] = text[k] == text[length - 1] ? k + 1 : 0;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  size_t longest = 0;
  for (std::string& stop : stops) {
    longest = std::max(longest, stop.size());
    Pattern pattern;
    pattern.fallback = Borders(stop);
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
  held_.reserve(longest);
}

bool StopMatcher::Push(std::string_view piece, std::string* out) {
  for (const char byte : piece) {
    uint32_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      while (pattern.state > 0 && pattern.text[pattern.state] != byte) {
        pattern.state = pattern.fallback[pattern.state];
      }
      pattern.state += pattern.text[pattern.state] == byte ? 1 : 0;
      longest = std::max(longest, pattern.state);
      // If several stop strings end at this byte the longest counts, so that none of its bytes are sent.
      const bool complete = pattern.state == pattern.text.size();
      if (complete && (matched_ < 0 || pattern.text.size() > patterns_[matched_].text.size())) {
        matched_ = static_cast<int>(i);
      }
    }
    held_.push_back(byte);
    if (matched_ >= 0) {
      const size_t stop_size = patterns_[matched_].text.size();
      out->append(held_, 0, held_.size() - (include_stop_ ? 0 : stop_size));
      held_.clear();
      return true;
    }
    // Only bytes that may still begin a stop string are held back.
    out->append(held_, 0, held_.size() - longest);
    held_.erase(0, held_.size() - longest);
  }
  return false;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

namespace {

// Number of the prompt's last tokens decoded before the answer: the text of a token depends on the start of a
// word, or on the other bytes of a character.
constexpr size_t kDecoderContext = 16;

Sequence::Header HeaderOf(SequenceId id, const GenerateSpec& spec, absl::Time now) {
  return {id, spec.request_id, spec.client, spec.priority, spec.deadline, now, now + spec.max_queue_wait};
}

}  // namespace

GenerateSequence::GenerateSequence(SequenceId id, GenerateSpec spec, std::shared_ptr<RequestSink> sink,
                                   absl::Time now, uint64_t seed, absl::Span<const int32_t> eos_ids,
                                   const Tokenizer* tokenizer, std::unique_ptr<GrammarConstraint> constraint)
    : Sequence(HeaderOf(id, spec, now), std::move(spec.prompt)),
      sampling_(spec.sampling),
      stopping_(spec.stopping),
      logprobs_(spec.logprobs),
      visible_special_(std::move(spec.visible_special_tokens)),
      tokenizer_(tokenizer),
      seed_(spec.sampling.seed.value_or(seed)),
      prefix_salt_(spec.bypass_prefix_cache ? std::nullopt : std::optional(std::move(spec.cache_salt))),
      stated_drafts_(std::move(spec.stated_drafts)),
      sink_(std::move(sink)),
      constraint_after_(spec.constraint.has_value() ? spec.constraint->after_token : std::nullopt),
      constrained_(constraint != nullptr && !constraint_after_.has_value()),
      constraint_(std::move(constraint)),
      stop_ids_(spec.stopping.stop_token_ids),
      matcher_(spec.stopping.stop, spec.stopping.include_stop_in_output) {
  const uint32_t most = prompt_tokens_ + stopping_.max_tokens;
  tokens_.reserve(most);
  if (!stopping_.ignore_eos) {
    stop_ids_.insert(stop_ids_.end(), eos_ids.begin(), eos_ids.end());
  }
  if (HasPenalties(sampling_)) {
    counts_.Reserve(most);
    for (const int32_t token : tokens_) {
      counts_.AddPrompt(token);
    }
  }
  if (tokenizer != nullptr) {
    decoder_.emplace(*tokenizer, /*skip_special=*/true);
    // The answer's text goes on where the prompt's ended: only at the start of a text does a SentencePiece
    // word lose its space, and a character may have begun in the prompt.
    const size_t context = std::min(tokens_.size(), kDecoderContext);
    for (size_t i = tokens_.size() - context; i < tokens_.size(); ++i) {
      decoder_->Push(tokens_[i]);
    }
  }
  out_.candidates.reserve(logprobs_);
}

void GenerateSequence::OnStarted(double queue_seconds) { sink_->OnStarted(MakeUsage(), queue_seconds); }

bool GenerateSequence::Congested() {
  if (constraint_ == nullptr || constraint_->state() == GrammarConstraint::State::kReady ||
      state_ != State::kRunning) {
    return false;
  }
  if (constraint_->state() == GrammarConstraint::State::kFailed) {
    error_ = constraint_->Wait().status();
    state_ = State::kFailed;
  }
  return true;
}

// Gets the grammar mask of the next token. False if there is no next token: the answer is complete, or the
// grammar failed.
bool GenerateSequence::QueryConstraint() {
  const absl::StatusOr<GrammarConstraint::Next> next = constraint_->Wait();
  if (!next.ok()) {
    error_ = next.status();
    state_ = State::kFailed;
    return false;
  }
  allowed_ = next->allowed;
  if (next->any) {
    return true;
  }
  if (!next->complete) {
    error_ = absl::InternalError(
        absl::StrCat("guided: no token of the model can follow the ", generated(), " tokens so far"));
    state_ = State::kFailed;
    return false;
  }
  state_ = State::kFinished;
  info_.reason = FinishReason::kStop;
  text_.clear();
  FinishText(/*stops=*/false);
  if (!text_.empty()) {
    sink_->OnTokens({}, text_);
  }
  return false;
}

void GenerateSequence::Take(const LogitSlice& slice, absl::Time now, Sampler* sampler) {
  if (!CheckFinite(slice) || (constrained_ && !QueryConstraint())) {
    return;
  }
  const int32_t token = Sample(slice, sampler);
  tokens_.push_back(token);
  if (counts_.enabled()) {
    counts_.AddGenerated(token);
  }
  first_token_ = generated() == 1 ? now : first_token_;
  last_token_ = now;
  const bool stops = Stops(token);
  text_.clear();
  AddText(token, stops);
  if (stops) {
    state_ = State::kFinished;
    info_.reason = FinishReason::kStop;
    info_.matched_stop_id = token;
  } else if (matcher_.matched() >= 0) {
    state_ = State::kFinished;
    info_.reason = FinishReason::kStopSequence;
    info_.matched_stop_string = matcher_.stop(matcher_.matched());
  } else if (generated() == stopping_.max_tokens) {
    state_ = State::kFinished;
    info_.reason = FinishReason::kLength;
  }
  if (state_ == State::kFinished && matcher_.matched() < 0) {
    FinishText(stops);
  } else if (state_ == State::kRunning && constrained_) {
    constraint_->Accept(token);
  }
  constrained_ = constrained_ || (constraint_ != nullptr && constraint_after_ == token);
  Report(slice, token);
}

// Ends the answer's text: bytes of an unfinished character become text, and held-back text is released, as no
// stop string follows.
void GenerateSequence::FinishText(bool stops) {
  if (decoder_.has_value() && matcher_.Push(decoder_->Flush(), &text_) && !stops) {
    info_.reason = FinishReason::kStopSequence;  // the last bytes, made whole, completed a stop string
    info_.matched_stop_string = matcher_.stop(matcher_.matched());
  }
  matcher_.Flush(&text_);
}

// True if the whole row is needed: for changed logits or a grammar mask. Otherwise the backend has found the
// largest logit, with ties to the lower id as in the sampler.
bool GenerateSequence::WantsLogits() const {
  const bool may_stop = generated() >= stopping_.min_tokens && constrained_ == (constraint_ != nullptr);
  const bool greedy = sampling_.temperature < kGreedyTemperature || sampling_.top_k == 1;
  return !greedy || counts_.enabled() || !sampling_.logit_bias.empty() || constraint_ != nullptr ||
         !(may_stop || stop_ids_.empty());
}

// The first token comes from a prompt row, which no draft follows.
uint32_t GenerateSequence::draft_limit() const {
  return generated() == 0 ? 0 : stopping_.max_tokens - std::min(stopping_.max_tokens, generated() + 1);
}

int32_t GenerateSequence::Sample(const LogitSlice& slice, Sampler* sampler) {
  const bool may_stop = generated() >= stopping_.min_tokens && constrained_ == (constraint_ != nullptr);
  if (!WantsLogits()) {
    return slice.logits->ids[uint64_t{slice.first} * slice.logits->k];
  }
  SampleInput input;
  input.logits = absl::MakeConstSpan(slice.logits->logits + uint64_t{slice.first} * slice.vocab, slice.vocab);
  input.params = &sampling_;
  input.seed = seed_;
  input.position = tokens_.size();
  input.counts = counts_.enabled() ? &counts_ : nullptr;
  input.banned = may_stop ? absl::Span<const int32_t>() : stop_ids_;
  input.allowed = allowed_;
  return sampler->Sample(input);
}

bool GenerateSequence::Stops(int32_t token) const {
  return generated() > stopping_.min_tokens &&
         std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

// Returns the text completed by `token`. A visible special token separates two texts: incomplete bytes before
// it stay incomplete.
std::string GenerateSequence::Decode(int32_t token) {
  if (!std::binary_search(visible_special_.begin(), visible_special_.end(), token)) {
    return decoder_->Push(token);
  }
  return decoder_->Flush().append(tokenizer_->IdToToken(token).value_or(""));
}

// Appends to text_ the text that can be sent with `token`.
void GenerateSequence::AddText(int32_t token, bool stops) {
  if (!decoder_.has_value() || (stops && !stopping_.include_stop_in_output)) {
    return;
  }
  // Stop strings count from min_tokens on, and only if they begin there.
  if (generated() <= stopping_.min_tokens) {
    text_ += Decode(token);
  } else {
    matcher_.Push(Decode(token), &text_);
  }
}

void GenerateSequence::Report(const LogitSlice& slice, int32_t token) {
  const LogitRows& logits = *slice.logits;
  const float log_sum = logits.log_sum_exp[slice.first];
  out_.token_id = token;
  // Without whole rows the token is the best candidate.
  const float logit = logits.logits == nullptr ? logits.values[uint64_t{slice.first} * logits.k]
                                               : logits.logits[uint64_t{slice.first} * slice.vocab + token];
  out_.logprob = logit - log_sum;
  out_.candidates.clear();
  for (uint32_t i = 0; i < std::min(logprobs_, logits.k); ++i) {
    const uint64_t at = uint64_t{slice.first} * logits.k + i;
    out_.candidates.push_back({logits.ids[at], logits.values[at] - log_sum});
  }
  sink_->OnTokens(absl::MakeConstSpan(&out_, 1), text_);
}

Usage GenerateSequence::MakeUsage() const {
  return {prompt_tokens_, generated(), cached_tokens_, drafted_tokens_, accepted_tokens_};
}

void GenerateSequence::Finish() {
  info_.usage = MakeUsage();
  info_.timings = MakeTimings();
  info_.seed = seed_;
  sink_->OnFinished(info_);
}

void GenerateSequence::Fail(const absl::Status& status) { sink_->OnError(status); }

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

void ScoreSequence::Finish() { sink_->OnFinished({.prompt_tokens = prompt_tokens_}, MakeTimings()); }

void ScoreSequence::Fail(const absl::Status& status) { sink_->OnError(status); }

}  // namespace sluice::inferd
