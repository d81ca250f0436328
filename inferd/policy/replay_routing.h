// Recorded routing: a trace (TRACE.md) whose scores replace the routers' own. Runs that would route
// differently (other encodings, neurons left out, another clock) then make the same decisions, and a random
// model routes like a real one.
//
// The n-th sequence that runs uses the scores of the trace's n-th sequence, position by position; after the
// last one the first follows again, and a sequence that is longer than its recording repeats it. A policy
// then works on these scores.
//
// Thread safety: RecordedScores is immutable after construction; ReplayRouting is thread-compatible, belongs
// to the engine thread and does not allocate after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/policy/router_trace.h"
#include "inferd/policy/routing.h"

namespace sluice::inferd {

class RecordedScores {
 public:
  // INVALID_ARGUMENT naming `subject`: the trace is of a model of other layers, experts or experts per token,
  // has no sequence, or its layers differ in their rows (some were lost).
  static absl::StatusOr<RecordedScores> Create(const Trace& trace, const std::string& subject,
                                               const ModelConfig& config);

  // Logits whose softmax is the recorded p. `sequence` is its number from 0. REQUIRES: a layer with
  // experts.
  absl::Span<const float> Logits(uint32_t layer, uint64_t sequence, uint32_t position) const;
  size_t sequences() const { return recorded_sequences_.size(); }

 private:
  struct RecordedSequence {
    uint32_t first_position = 0;
    std::vector<uint32_t> rows;  // index of the layers' scores, by position
  };
  std::vector<RecordedSequence> recorded_sequences_;
  std::vector<uint32_t> experts_;           // by layer
  std::vector<std::vector<float>> logits_;  // by layer: [rows, experts]
};

class ReplayRouting final : public RoutingPolicy {
 public:
  // `inner` chooses among the recorded scores. Errors of RecordedScores; UNIMPLEMENTED for routers whose
  // weights are not a softmax.
  static absl::StatusOr<std::unique_ptr<ReplayRouting>> Create(const Trace& trace, const std::string& subject,
                                                               const ModelConfig& config,
                                                               std::unique_ptr<RoutingPolicy> inner);

  // Overwrites the logits of rows that belong to a numbered sequence, then calls `inner`.
  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
  absl::Status Decide(const RoutingInput& input, Queue* queue) override {
    return inner_->Decide(input, queue);
  }
  bool KeepsResident(uint32_t layer, const StepBatch& batch) const override {
    return inner_->KeepsResident(layer, batch);
  }
  void CountResident(uint32_t layer, const Routing& routing, const StepBatch& batch) override {
    inner_->CountResident(layer, routing, batch);
  }
  absl::Span<const RoutingCounters> layer_counters() const override { return inner_->layer_counters(); }
  Routing Wanted(const Routing& computed) const override { return inner_->Wanted(computed); }
  absl::Span<const uint64_t> skipped() const override { return inner_->skipped(); }

 private:
  ReplayRouting(RecordedScores scores, std::unique_ptr<RoutingPolicy> inner)
      : scores_(std::move(scores)), inner_(std::move(inner)) {}

  const RecordedScores scores_;
  const std::unique_ptr<RoutingPolicy> inner_;
  uint64_t first_number_ = 0;  // number of the sequence that replays the first recorded one; 0: none so far
};

}  // namespace sluice::inferd
