// A live request inside the engine: its tokens, the logits it needs, its accounting, its sink.
// GenerateSequence and ScoreSequence are the two kinds.
//
// Thread safety: thread-compatible. Made on the caller's thread, then handed to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "inferd/api/engine_api.h"
#include "inferd/forward/forward.h"
#include "inferd/forward/sampler.h"
#include "inferd/forward/scheduler.h"
#include "inferd/grammar/grammar_manager.h"

namespace sluice::inferd {

// Consecutive rows of one sequence in a LogitRows.
struct LogitSlice {
  const LogitRows* logits = nullptr;
  uint32_t first = 0;  // row in `logits`
  uint32_t rows = 0;
  uint32_t position = 0;  // position of the first row, in the sequence
  uint32_t vocab = 0;
};

// Cost of a step; sequences get their share by rows.
struct StepCost {
  double stall_seconds = 0;
  double expert_requests = 0;
  double expert_hits = 0;
  double bytes_ssd = 0;
  double bytes_link = 0;
};

class Sequence {
 public:
  struct Header {
    SequenceId id = 0;
    std::string request_id;
    std::string client;
    int32_t priority = 0;
    absl::Time deadline = absl::InfiniteFuture();
    absl::Time created;
    absl::Time start_by = absl::InfiniteFuture();
  };
  enum class State : uint8_t { kRunning, kFinished, kFailed };

  virtual ~Sequence() = default;

  const Header& header() const { return header_; }
  absl::Span<const int32_t> tokens() const { return tokens_; }
  State state() const { return state_; }

  // Maximum rows of this sequence in one step; 0: no own limit.
  virtual uint32_t row_limit() const { return 0; }
  // Number of planned rows, counted from the last, that need logits.
  virtual uint32_t LogitRowsOf(const ScheduledRows& rows) const = 0;
  // Position of the first row that counts as decoded (step_batch.h).
  virtual uint32_t decode_from() const { return prompt_tokens_; }
  // Number of candidates needed for each of these rows, at least 1.
  virtual uint32_t candidates() const { return 1; }
  // True if it needs whole rows of logits in the next step, not only the candidates.
  virtual bool WantsLogits() const { return true; }
  // Number of drafts that the next step may verify: so many that each right one and the token after the last
  // are still needed. 0: a sequence that does not generate.
  virtual uint32_t draft_limit() const { return 0; }
  // Drafts that its request states; null: none.
  virtual const StatedDrafts* stated_drafts() const { return nullptr; }
  // Notes that a step verified `drafted` drafts, and that `accepted` of them were right.
  void NoteDrafts(uint32_t drafted, uint32_t accepted) {
    drafted_tokens_ += drafted;
    accepted_tokens_ += accepted;
  }
  // True if the consumer accepts no more for now.
  virtual bool Congested() { return false; }
  // Sequences of equal salt share cached prefixes (prefix_cache.h); null: no sharing.
  virtual const std::string* prefix_salt() const { return nullptr; }

  // Notes that the sequence starts after `positions` cached ones. Only the first start counts.
  void NotePrefix(uint32_t positions);
  // Number of prompt tokens found in the prefix cache.
  uint32_t cached_tokens() const { return cached_tokens_; }

  // Notes that the sequence left the queue; tells the sink the first time.
  void Admit(absl::Time now);
  void AddCost(const StepCost& cost, double share);

  // Processes rows of logits in position order and changes state() when they end the sequence. A row of a
  // draft comes alone, after the draft was found right.
  virtual void Take(const LogitSlice& slice, absl::Time now, Sampler* sampler) = 0;

  // The following functions report the end to the sink: once state() is kFinished; with the stored error once
  // it is kFailed; with `status` at any time. Exactly one of them is called, once.
  virtual void Finish() = 0;
  void FinishFailed() { Fail(error_); }
  virtual void Fail(const absl::Status& status) = 0;

  uint32_t prompt_tokens() const { return prompt_tokens_; }
  uint32_t generated() const { return static_cast<uint32_t>(tokens_.size()) - prompt_tokens_; }

 protected:
  Sequence(Header header, std::vector<int32_t> tokens)
      : header_(std::move(header)),
        tokens_(std::move(tokens)),
        prompt_tokens_(static_cast<uint32_t>(tokens_.size())) {}

  virtual void OnStarted(double queue_seconds) = 0;
  // True if the logits are finite; otherwise ends the sequence with INTERNAL.
  bool CheckFinite(const LogitSlice& slice);
  Timings MakeTimings() const;
  double QueueSeconds() const;

  const Header header_;
  std::vector<int32_t> tokens_;
  const uint32_t prompt_tokens_;
  uint32_t cached_tokens_ = 0;
  uint32_t drafted_tokens_ = 0;
  uint32_t accepted_tokens_ = 0;
  State state_ = State::kRunning;
  absl::Status error_;
  absl::Time admitted_ = absl::InfinitePast();
  absl::Time first_token_ = absl::InfinitePast();
  absl::Time last_token_ = absl::InfinitePast();
  StepCost cost_;
};

// Stop strings in a text stream: holds back text that may still become a stop string, so that no part of one
// is ever sent.
//
// The text is seen as a stream of bytes: the stop string that is complete first ends it (of several complete
// at the same byte the longest), however the text is cut into pieces.
//
// Thread safety: thread-compatible; one matcher belongs to one stream.

class StopMatcher {
 public:
  // `stops`: non-empty strings. `include_stop`: the stop string itself is sent.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Adds the next piece and appends to `*out` the text that can be sent now. True: a stop string is complete;
  // nothing more may be pushed.
  bool Push(std::string_view piece, std::string* out);

  // Ends a stream without a stop: appends the held-back text.
  void Flush(std::string* out);

  // Index of the stop string that ended the stream, -1 before.
  int matched() const { return matched_; }
  const std::string& stop(int index) const { return patterns_[index].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // by length: the longest proper border of the first `length` bytes
    uint32_t state = 0;              // the longest prefix of `text` that the stream ends in
  };

  std::vector<Pattern> patterns_;
  const bool include_stop_;
  std::string held_;  // the stream's end that is a prefix of a stop string
  int matched_ = -1;
};

// A generate request: samples one token a step, decodes it to text, detects the end.
//
// Special tokens are left out of the text, except the request's visible special tokens.
//
// The token that ends an answer (an end token or a stop id) is reported as a token and counted; its text only
// with include_stop_in_output. Text is held back while it may become a stop string. The first min_tokens
// tokens are never end tokens or stop ids, and their text takes no part in stop strings.
//
// With a grammar the mask constrains each token (after its start token, if it has one); an answer that allows
// no further token ends without an end token. Until the grammar is compiled the sequence counts as congested.
//
// Thread safety: thread-compatible; see sequence.h.

class GenerateSequence final : public Sequence {
 public:
  // `spec`: validated; `seed`: used if `spec` names none; `eos_ids`: the model's end tokens; `tokenizer`:
  // null: no text is made. Both outlive the sequence. `constraint`: null: no grammar.
  GenerateSequence(SequenceId id, GenerateSpec spec, std::shared_ptr<RequestSink> sink, absl::Time now,
                   uint64_t seed, absl::Span<const int32_t> eos_ids, const Tokenizer* tokenizer,
                   std::unique_ptr<GrammarConstraint> constraint = nullptr);

  bool WantsLogits() const override;
  uint32_t LogitRowsOf(const ScheduledRows& rows) const override {
    return rows.reaches_end ? 1 + static_cast<uint32_t>(rows.drafts.size()) : 0;
  }
  uint32_t draft_limit() const override;
  const StatedDrafts* stated_drafts() const override {
    return stated_drafts_.has_value() ? &*stated_drafts_ : nullptr;
  }
  uint32_t candidates() const override { return 1 + logprobs_; }
  const std::string* prefix_salt() const override {
    return prefix_salt_.has_value() ? &*prefix_salt_ : nullptr;
  }
  bool Congested() override;
  void Take(const LogitSlice& slice, absl::Time now, Sampler* sampler) override;
  void Finish() override;
  void Fail(const absl::Status& status) override;

 protected:
  void OnStarted(double queue_seconds) override;

 private:
  bool QueryConstraint();
  void FinishText(bool stops);
  int32_t Sample(const LogitSlice& slice, Sampler* sampler);
  void Report(const LogitSlice& slice, int32_t token);
  void AddText(int32_t token, bool stops);
  std::string Decode(int32_t token);
  bool Stops(int32_t token) const;
  Usage MakeUsage() const;

  const SamplingParams sampling_;
  const StoppingParams stopping_;
  const uint32_t logprobs_;
  const std::vector<int32_t> visible_special_;  // ascending
  const Tokenizer* const tokenizer_;
  const uint64_t seed_;
  const std::optional<std::string> prefix_salt_;
  const std::optional<StatedDrafts> stated_drafts_;
  const std::shared_ptr<RequestSink> sink_;
  const std::optional<int32_t> constraint_after_;  // the grammar starts after this token; empty: at once
  bool constrained_ = false;                       // the grammar is active
  const std::unique_ptr<GrammarConstraint> constraint_;  // null: no grammar
  absl::Span<const uint32_t> allowed_;  // the grammar's mask of the current token; empty: none
  std::vector<int32_t> stop_ids_;       // end tokens (unless ignored) and stop ids
  TokenCounts counts_;                  // empty without penalties
  std::optional<StreamDecoder> decoder_;
  StopMatcher matcher_;
  std::string text_;  // text of the current token
  TokenOut out_;      // the current token
  FinishInfo info_;
};

// A score request: its tokens are given, and every row's logits are reported.
//
// Thread safety: thread-compatible; see sequence.h.

class ScoreSequence final : public Sequence {
 public:
  // `spec`: validated. `vocab` bounds the rows a step may hold when full rows are wanted.
  ScoreSequence(SequenceId id, ScoreSpec spec, std::shared_ptr<ScoreSink> sink, absl::Time now,
                uint32_t vocab);

  uint32_t row_limit() const override { return row_limit_; }
  uint32_t LogitRowsOf(const ScheduledRows& rows) const override;
  bool WantsLogits() const override { return want_logits_ || !targets_.empty(); }
  uint32_t decode_from() const override { return 0; }
  bool Congested() override { return sink_->Congested(); }
  void Take(const LogitSlice& slice, absl::Time now, Sampler* sampler) override;
  void Finish() override;
  void Fail(const absl::Status& status) override;

 protected:
  void OnStarted(double) override {}

 private:
  const std::vector<int32_t> targets_;
  const bool want_logits_;
  const uint32_t row_limit_;
  const std::shared_ptr<ScoreSink> sink_;
  uint32_t reported_ = 0;               // number of rows reported to the sink
  std::vector<int32_t> argmax_;         // of one slice
  std::vector<float> target_logprobs_;  // of one slice
};

}  // namespace sluice::inferd
