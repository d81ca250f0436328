// What a layer's experts have to compute, as it becomes ready: collects the work that is queued next, and
// knows which demands the queue has had whole.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/experts/expert_source.h"
#include "inferd/model/dense_tensors.h"
#include "inferd/policy/sparsity/sparsity.h"
#include "inferd/step/work_plan.h"
#include "kernels/ops.h"

namespace sluice {

class LayerWork {
 public:
  // All outlive this object; `plan` says what the layer that runs demands.
  LayerWork(const ModelConfig& config, const std::vector<LayerWeights>& weights,
            const SparsityPolicy& sparsity, const WorkPlan& plan);

  // The layer's plan is made. The expert that every token goes through, if there is one, is ready from the
  // start.
  void Begin(uint32_t layer);

  // These have become ready: whole experts or parts of them, not leads. The device's are to be queued.
  void Add(absl::Span<const ReadyTile> tiles);
  // Those of some tiles that are the CPU's. Lives until the next call.
  absl::Span<const ExpertWork> OnCpu(absl::Span<const ReadyTile> tiles);
  // What is to be queued next, in the order in which it became ready.
  absl::Span<const ExpertWork> ready() const { return ready_; }
  // The queue has it.
  void Queued() { ready_.clear(); }

  // What makes the lead values of some tiles, which are leads. Lives until the next call.
  absl::Span<const LeadWork> LeadsOf(absl::Span<const ReadyTile> tiles);

  // All experts of a layer by the router's ids, that of every token behind them, without rows: each is there
  // whole. The same of their leads. Live until the next call.
  absl::Span<const ExpertWork> ByExpert(uint32_t layer, const ExpertSource& experts);
  absl::Span<const LeadWork> LeadsByExpert(uint32_t layer, absl::Span<const WeightView> leads);

  // Whether all of a demand became ready, for the device.
  bool IsWhole(uint32_t demand) const { return whole_[demand] != 0; }
  // Demands of the layer of which that cannot be said.
  uint32_t missing() const;

 private:
  ExpertWork CommonWork() const;
  ExpertWork RoutedWork(const ReadyTile& tile) const;
  ExpertWork WorkOf(uint32_t layer, uint32_t expert, const ReadyTile& tile) const;

  const ModelConfig& config_;
  const std::vector<LayerWeights>& weights_;
  const SparsityPolicy& sparsity_;
  const WorkPlan& plan_;
  uint32_t layer_ = 0;
  std::vector<ExpertWork> ready_;        // [most experts + 1], of one MoeExperts call
  std::vector<ExpertWork> on_cpu_;       // [most experts], of another one beside it
  std::vector<LeadWork> leads_;          // [most experts], of one ExpertLeads call
  std::vector<ExpertWork> whole_layer_;  // [most experts + 1], of one RoutedExperts call
  std::vector<uint8_t> whole_;           // [most experts], by demand
};

}  // namespace sluice
