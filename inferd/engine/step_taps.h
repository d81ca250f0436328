// Hooks of the forward pass in an engine's steps: calls the trace recorder, then the prefetcher, whose
// requests of one layer are submitted to weightd as one batch.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <functional>
#include <utility>

#include "inferd/policy/predict/predictor.h"
#include "inferd/policy/taps/prefetcher.h"
#include "inferd/policy/taps/trace_recorder.h"
#include "inferd/weights/weight_client.h"

namespace sluice::inferd {

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
