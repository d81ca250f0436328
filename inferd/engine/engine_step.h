// The rows of an engine's step: each sequence's rows of the batch, and its rows of logits.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "inferd/forward/forward.h"
#include "inferd/forward/sampler.h"
#include "inferd/forward/scheduler.h"
#include "inferd/forward/sequence.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "inferd/model/step_batch.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/prefetcher.h"
#include "inferd/policy/router_trace.h"

namespace sluice::inferd {

class StepRows {
 public:
  struct Running {  // a sequence of the step
    Sequence* sequence = nullptr;
    ScheduledRows rows;
  };

  // `short_rope_limit`: maximum positions for the model's short rope table; 0: the model has one table for
  // all lengths.
  StepRows(const ForwardOptions& limits, uint32_t vocab, uint32_t short_rope_limit);

  // Fills the batch with the rows of a plan. `find` returns the sequence of an id.
  void Begin(uint64_t step, const StepPlan& plan, KvCache* kv, const RecurrentStates& states,
             absl::FunctionRef<Sequence*(SequenceId)> find);

  bool WantLogits() const { return !wants_.empty(); }
  // Computes the logits of the forward pass's rows and gives them to their sequences, at time `now`. `check`
  // is called before the first sequence: until then the step can be repeated.
  absl::Status Deliver(Forward* forward, absl::FunctionRef<absl::Status()> check,
                       absl::FunctionRef<absl::Time()> now);

  const StepBatch& batch() const { return batch_; }
  StepBatch* mutable_batch() { return &batch_; }
  absl::Span<const Running> running() const { return running_; }  // by index in the batch
  uint32_t short_rope_limit() const { return short_text_limit_; }

 private:
  struct LogitWant {
    uint32_t row = 0;       // in the batch
    uint32_t sequence = 0;  // index in running_
    uint32_t position = 0;
  };

  void Add(const ScheduledRows& rows, Sequence* sequence, KvCache* kv, const RecurrentStates& states);
  bool IsLongText(const Sequence& sequence) const;
  void Hand(const LogitRows& logits, size_t begin, size_t end, absl::Time now);
  bool IsRight(const LogitWant& want) const;

  const uint32_t vocab_;
  const uint32_t short_text_limit_;
  const uint32_t logit_rows_;  // rows computed at once
  Sampler sampler_;
  StepBatch batch_;
  std::vector<Running> running_;
  std::vector<LogitWant> wants_;
  std::vector<uint32_t> want_rows_;
  std::vector<int32_t> with_drafts_;  // a sequence's row tokens and drafts
  uint32_t candidates_ = 1;
  bool whole_logits_ = false;  // some sequence needs whole rows
};

// Hooks of the forward pass in an engine's steps: calls the trace recorder, then the prefetcher, whose
// requests of one layer are submitted to weightd as one batch.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class StepHooks final : public LayerObserver {
 public:
  // `prefetcher` and `trace` may be null; all outlive the hooks. `moved_on` is called at every layer.
  StepHooks(WeightClient* client, Prefetcher* prefetcher, TraceRecorder* trace,
            std::function<void()> moved_on)
      : client_(client), prefetcher_(prefetcher), trace_(trace), moved_on_(std::move(moved_on)) {}

  absl::Status BeforeChoice(const RouterState& state) override;
  bool CanDeferRouting(uint32_t layer) const override;
  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) override;
  absl::Status AfterLayer(const LayerEnd& end) override;
  bool WantsLookAhead(uint32_t layer) const override;
  absl::Status LookAhead(const RouterState& state) override;
  bool WantsNextTokens() override;
  absl::Status NextTokens(const RouterState& state) override;

 private:
  WeightClient* const client_;
  Prefetcher* const prefetcher_;
  TraceRecorder* const trace_;
  const std::function<void()> moved_on_;
};

}  // namespace sluice::inferd
