// Routing as recorded: a trace (TRACE.md) whose scores take the place of the routers' own, so that runs that
// would route differently (other encodings, neurons left out, another clock) take the same decisions, and a
// random model routes as a real one did.
//
// The n-th text that runs takes the scores of the trace's n-th text, position by position; after the last
// text comes the first again, and a text that goes on beyond its recording goes through it again. Whatever a
// policy then does, it does with these scores.
//
// Thread safety: RecordedScores is immutable once made; ReplayRouting is thread-compatible, belongs to the
// engine thread and does not allocate once made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/policy/routing/routing.h"
#include "inferd/policy/trace/trace_file.h"

namespace sluice {

class RecordedScores {
 public:
  // INVALID_ARGUMENT naming `subject`: the trace is of a model of other layers, experts or experts a token,
  // has no text, or its layers differ in their rows (some were lost).
  static absl::StatusOr<RecordedScores> Create(const Trace& trace, const std::string& subject,
                                               const ModelConfig& config);

  // Logits, whose softmax is the recorded p. `text` counts from 0. REQUIRES: a layer with experts.
  absl::Span<const float> Logits(uint32_t layer, uint64_t text, uint32_t position) const;
  size_t texts() const { return texts_.size(); }

 private:
  struct Text {
    uint32_t first_position = 0;
    std::vector<uint32_t> rows;  // of the layers' scores, by position
  };
  std::vector<Text> texts_;
  std::vector<uint32_t> experts_;           // by layer
  std::vector<std::vector<float>> logits_;  // by layer: [rows, experts]
};

class ReplayRouting final : public RoutingPolicy {
 public:
  // `inner` chooses among the recorded scores. Errors of RecordedScores; UNIMPLEMENTED for routers whose
  // weights are no softmax.
  static absl::StatusOr<std::unique_ptr<ReplayRouting>> Create(const Trace& trace, const std::string& subject,
                                                               const ModelConfig& config,
                                                               std::unique_ptr<RoutingPolicy> inner);

  // Overwrites the logits of rows that belong to a numbered sequence, then asks `inner`.
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
  uint64_t first_number_ = 0;  // of the sequence that takes the first text; 0: none came yet
};

}  // namespace sluice
