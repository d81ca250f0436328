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
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "inferd/guide/guides.h"
#include "inferd/schedule/sequence.h"
#include "inferd/schedule/stop_matcher.h"

namespace sluice::inferd {

class GenerateSequence final : public Sequence {
 public:
  // `spec`: validated; `seed`: used if `spec` names none; `eos_ids`: the model's end tokens; `tokenizer`:
  // null: no text is made. Both outlive the sequence. `constraint`: null: no grammar.
  GenerateSequence(SequenceId id, GenerateSpec spec, std::shared_ptr<RequestSink> sink, absl::Time now,
                   uint64_t seed, absl::Span<const int32_t> eos_ids, const Tokenizer* tokenizer,
                   std::unique_ptr<GrammarConstraint> constraint = nullptr);

  bool WantsLogits() const override;
  uint32_t LogitRowsOf(const ScheduledRows& rows) const override { return rows.reaches_end ? 1 : 0; }
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

}  // namespace sluice::inferd
