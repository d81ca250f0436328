// The tokens that probably follow a step, guessed while experts of its last layer travel: whom a guess may
// follow, when it is worth its time, and whether the next step begins with what was guessed.
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

namespace sluice {

class TokenGuess {
 public:
  struct Limits {
    uint32_t max_sequences = 0;  // of a step
    uint32_t context = 0;        // positions of a sequence
    uint32_t rows = 0;           // of a guess
  };
  // Steps at whose end the tokens that follow were guessed, and those of them that the next step began with.
  struct Counts {
    uint64_t made = 0;
    uint64_t right = 0;
  };
  // `queue`: makes guesses; outlives this object.
  TokenGuess(const Limits& limits, Queue* queue);

  // A step begins: whether it is what was guessed at the end of the one before, the same tokens of the same
  // texts. The guess is used up.
  bool Take(const StepBatch& batch);
  void Forget();

  // Rows of the running batch whose next token has a place in the KV cache already; none unless that is so
  // for generated rows only, one of each text.
  absl::Span<const uint32_t> FindFollowed(const StepBatch& batch);

  // These tokens, by place in what FindFollowed() gave, follow `batch`.
  void Make(const StepBatch& batch, absl::Span<const int32_t> tokens);
  // What was made, as the next step's batch; no tokens: nothing.
  const StepBatch& guessed() const { return guessed_; }

  // Whether a guess pays while so many experts are waited for.
  bool Pays(uint32_t missing) {
    TakeTiming();
    return timing_.Pays(missing);
  }
  // A wait for so many experts (> 0) begins in which nothing is guessed, so that it tells how long one takes.
  void BeginWait(uint32_t missing) {
    wait_begin_ = clock_.NowNanos();
    wait_missing_ = missing;
  }
  void EndWait();
  // What was queued between the two points makes a guess: the device's clock says what that took, once it is
  // known to be done.
  void Making(Event from, Event to) { making_ = {from, to}; }

  const Counts& counts() const { return counts_; }

 private:
  struct Span {
    Event from;
    Event to;  // 0: nobody asks
  };
  void TakeTiming();
  bool IsGuessed(const StepBatch& batch) const;

  const Limits limits_;
  Queue* const queue_;
  const MonotonicClock clock_;
  StepBatch guessed_;
  std::vector<uint32_t> followed_;
  GuessTiming timing_;
  Span making_;  // of the last guess, until its time is known
  Counts counts_;
  int64_t wait_begin_ = 0;     // 0: no wait is timed
  uint32_t wait_missing_ = 0;  // experts that were missing then
};

}  // namespace sluice
