// Turns predictions into prefetches, and counts how good they were.
//
// Once the router of a layer has run, the experts of the next layer that has any are predicted, unless all of
// them are resident, and those that more rows want are asked for first. When that layer's router runs, its
// choice is compared.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#ifndef SLUICE_INFERD_POLICY_PREFETCHER_H_
#define SLUICE_INFERD_POLICY_PREFETCHER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "inferd/policy/predictor.h"
#include "inferd/residency/residency.h"

namespace sluice {

// Of one layer: pairs (row, expert) predicted, and those the router then chose for the same row.
struct PredictionCounters {
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;  // experts that the router chose where something had been predicted
};

class Prefetcher final : public LayerTap {
 public:
  // `residency` outlives the prefetcher.
  Prefetcher(const ModelConfig& config, uint32_t max_tokens, uint32_t max_prefetch,
             std::unique_ptr<ExpertPredictor> predictor, Residency* residency);

  absl::Status AfterRouter(const RouterTap& tap) override;

  const PredictionCounters& counters(uint32_t layer) const { return counters_[layer]; }
  PredictionCounters total() const;

 private:
  static constexpr uint32_t kNoLayer = 0xffffffffu;

  void Compare(const RouterTap& tap);
  absl::Status PredictLayer(const RouterTap& tap, uint32_t target);
  void AskFor(const RouterTap& tap, uint32_t target);

  const uint32_t max_prefetch_;
  const std::unique_ptr<ExpertPredictor> predictor_;
  Residency* const residency_;

  uint64_t predicted_step_ = 0;  // step and layer that ids_ is about; layer 0: nothing
  uint32_t predicted_layer_ = 0;
  uint32_t top_k_ = 0;                        // of the predicted layer
  std::vector<int32_t> ids_;                  // [max_tokens, largest top_k]
  std::vector<ExpertDemand> ranking_;         // [most experts]
  std::vector<uint32_t> next_routed_;         // by layer: the next one with experts, or kNoLayer
  std::vector<PredictionCounters> counters_;  // by layer
};

}  // namespace sluice

#endif  // SLUICE_INFERD_POLICY_PREFETCHER_H_
