// A live request inside the engine: its tokens, the logits it needs, its accounting, its sink.
// GenerateSequence and ScoreSequence are the two kinds.
//
// Thread safety: thread-compatible. Made on the caller's thread, then handed to the engine thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "inferd/api/engine_api.h"
#include "inferd/forward/forward.h"
#include "inferd/schedule/sampler.h"
#include "inferd/schedule/scheduler.h"

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

  // Processes rows of logits in position order and changes state() when they end the sequence.
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
  State state_ = State::kRunning;
  absl::Status error_;
  absl::Time admitted_ = absl::InfinitePast();
  absl::Time first_token_ = absl::InfinitePast();
  absl::Time last_token_ = absl::InfinitePast();
  StepCost cost_;
};

}  // namespace sluice::inferd
