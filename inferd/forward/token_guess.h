// Draft tokens that probably follow a step, computed while experts of its last layer travel: which rows get a
// draft, when it is worth its time, and if the next step begins with it.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "inferd/forward/guess_timing.h"
#include "inferd/step/step_batch.h"
#include "kernels/backend.h"

namespace sluice::inferd {

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
