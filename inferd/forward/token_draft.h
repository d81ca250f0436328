// Draft tokens (forward.h): tokens that probably follow a step. DraftTiming decides if a draft is worth its
// time: most of it must overlap the wait for experts. With a wide vocabulary or few missing experts the layer
// would wait for the draft instead.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "inferd/model/step_batch.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class DraftTiming {
 public:
  // True if a draft pays, by recent times of both: a draft may take kWorth times the wait, since a right one
  // saves an attention later and lets the disk read while it would be idle. True until both were measured. A
  // false makes the next true likelier, so that a draft delayed once is tried again.
  bool Pays(uint32_t missing) {
    const bool pays = cost_nanos_ <= kWorth * wait_nanos_ * missing || wait_nanos_ == 0;
    cost_nanos_ -= pays ? 0 : cost_nanos_ / kForget;
    return pays;
  }

  // Adds the time of a draft.
  void AddDraft(int64_t nanos) { Add(static_cast<double>(nanos), &cost_nanos_); }
  // Adds the wait for `missing` (> 0) experts of a layer without a draft.
  void AddWait(uint32_t missing, int64_t nanos) { Add(static_cast<double>(nanos) / missing, &wait_nanos_); }

 private:
  static constexpr double kWorth = 2;
  static constexpr double kWindow = 16;  // sliding means
  static constexpr double kForget = 64;

  static void Add(double value, double* mean) { *mean += *mean == 0 ? value : (value - *mean) / kWindow; }

  double cost_nanos_ = 0;  // mean time of a draft; 0: none measured
  double wait_nanos_ = 0;  // mean wait for one expert; 0: none measured
};

// Draft tokens that probably follow a step, computed while experts of its last layer travel: which rows get a
// draft, when it is worth its time, and if the next step begins with it.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.

class TokenDraft {
 public:
  struct Limits {
    uint32_t max_sequences = 0;  // sequences of a step
    uint32_t context = 0;        // positions of a sequence
    uint32_t rows = 0;           // rows of a draft
  };
  // Number of steps that ended with a draft, and of guesses that the next step began with.
  struct Counts {
    uint64_t made = 0;
    uint64_t right = 0;
  };
  // `queue` computes the guesses; outlives this object.
  TokenDraft(const Limits& limits, Queue* queue);

  // True if the beginning step equals the draft of the previous step: the same tokens of the same sequences.
  // Consumes the draft.
  bool Take(const StepBatch& batch);
  void Forget();

  // Returns the rows of the running batch whose next token already has a position in the KV cache; empty
  // unless all rows are generated ones, one per sequence.
  absl::Span<const uint32_t> FindDraftRows(const StepBatch& batch);

  // Stores the draft: `tokens` follow `batch`, in the order of FindDraftRows().
  void Make(const StepBatch& batch, absl::Span<const int32_t> tokens);
  // The draft as the next step's batch; no tokens: no draft.
  const StepBatch& drafted() const { return guessed_; }

  // True if a draft pays while `missing` experts are awaited.
  bool Pays(uint32_t missing) {
    TakeTiming();
    return timing_.Pays(missing);
  }
  // Begins a wait for `missing` experts (> 0) without a draft, which measures the wait per expert.
  void BeginWait(uint32_t missing) {
    wait_begin_ = clock_.NowNanos();
    wait_missing_ = missing;
  }
  void EndWait();
  // Notes that the work between the two events computes a draft; the device's clock gives its time once it is
  // done.
  void Making(Event from, Event to) { making_ = {from, to}; }

  const Counts& counts() const { return counts_; }

 private:
  struct Span {
    Event from;
    Event to;  // 0: nothing to measure
  };
  void TakeTiming();
  bool IsGuessed(const StepBatch& batch) const;

  const Limits limits_;
  Queue* const queue_;
  const MonotonicClock clock_;
  StepBatch guessed_;
  std::vector<uint32_t> followed_;
  DraftTiming timing_;
  Span making_;  // the last draft, until its time is known
  Counts counts_;
  int64_t wait_begin_ = 0;     // 0: no wait is timed
  uint32_t wait_missing_ = 0;  // experts that were missing then
};

}  // namespace sluice::inferd
