// The work of a layer's experts as it becomes ready: collects the next work to queue, and tracks the demands
// that were queued whole.
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

namespace sluice::inferd {

class LayerWork {
 public:
  // All arguments outlive this object; `plan` holds the demands of the running layer.
  LayerWork(const ModelConfig& config, const std::vector<LayerWeights>& weights,
            const SparsityPolicy& sparsity, const WorkPlan& plan);

  // Begins a layer whose plan is made. The common expert, if there is one, is ready from the start.
  void Begin(uint32_t layer);

  // Adds tiles that became ready: whole experts or parts of them, not leads. The device's tiles join ready().
  void Add(absl::Span<const ReadyTile> tiles);
  // Returns the CPU's work among some tiles. Valid until the next call.
  absl::Span<const ExpertWork> OnCpu(absl::Span<const ReadyTile> tiles);
  // The work to queue next, in the order in which it became ready.
  absl::Span<const ExpertWork> ready() const { return ready_; }
  // Clears ready() after it was queued.
  void Queued() { ready_.clear(); }

  // Returns the work that computes the lead values of some tiles, all of them leads. Valid until the next
  // call.
  absl::Span<const LeadWork> LeadsOf(absl::Span<const ReadyTile> tiles);

  // Returns all experts of a layer by router id, the common expert last, without rows. All must be resident
  // whole. The second function returns their leads. Valid until the next call.
  absl::Span<const ExpertWork> ByExpert(uint32_t layer, const ExpertSource& experts);
  absl::Span<const LeadWork> LeadsByExpert(uint32_t layer, absl::Span<const WeightView> leads);

  // True if the whole demand became ready for the device.
  bool IsWhole(uint32_t demand) const { return whole_[demand] != 0; }
  // Number of the layer's demands that are not whole.
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
  std::vector<ExpertWork> ready_;        // [maximum experts + 1], of one MoeExperts call
  std::vector<ExpertWork> on_cpu_;       // [maximum experts], of the CPU's call
  std::vector<LeadWork> leads_;          // [maximum experts], of one ExpertLeads call
  std::vector<ExpertWork> whole_layer_;  // [maximum experts + 1], of one RoutedExperts call
  std::vector<uint8_t> whole_;           // [maximum experts], by demand
};

}  // namespace sluice::inferd
