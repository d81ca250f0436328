// The work of a layer's experts as it becomes ready: collects the next work to queue, and tracks the demands
// that were queued whole.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/step_batch.h"
#include "inferd/policy/sparsity.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace sluice::inferd {

// Returns the work of a dense expert without rows.
ExpertWork WorkOfDense(const DenseExpert& expert);

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

  // All experts of a layer by router id, the common expert last, without rows, and the number of the list for
  // RoutedExpertsArgs.
  struct WholeLayer {
    absl::Span<const ExpertWork> experts;
    uint64_t number = 0;
  };
  // Returns the whole experts of a layer, all of which must be resident. The second function returns their
  // leads. Valid until the next call for the layer.
  WholeLayer ByExpert(uint32_t layer, const ExpertSource& experts);
  absl::Span<const LeadWork> LeadsByExpert(uint32_t layer, absl::Span<const WeightView> leads);

  // True if the whole demand became ready for the device.
  bool IsWhole(uint32_t demand) const { return whole_[demand] != 0; }
  // Number of the layer's demands that are not whole.
  uint32_t missing() const;

 private:
  bool HasDenseParts(uint32_t layer, absl::Span<const ExpertWork> experts) const;
  ExpertWork CommonWork() const;
  ExpertWork RoutedWork(const ReadyTile& tile) const;
  ExpertWork WorkOf(uint32_t layer, uint32_t expert, const ReadyTile& tile) const;

  const ModelConfig& config_;
  const std::vector<LayerWeights>& weights_;
  const SparsityPolicy& sparsity_;
  const WorkPlan& plan_;
  uint32_t layer_ = 0;
  std::vector<ExpertWork> ready_;   // [maximum experts + 1], of one MoeExperts call
  std::vector<ExpertWork> on_cpu_;  // [maximum experts], of the CPU's call
  std::vector<LeadWork> leads_;     // [maximum experts], of one ExpertLeads call
  struct KnownLayer {
    std::vector<ExpertWork> experts;  // [its experts + 1], of its RoutedExperts calls
    uint64_t source = 0;              // ExpertSource::WholeNumber(); 0: made anew at each call
    uint64_t number = 0;
  };
  std::vector<KnownLayer> known_;  // by layer
  std::vector<uint8_t> whole_;     // [maximum experts], by demand
};

// The part of a layer's experts that the CPU computes beside the device: copies the input rows to the CPU,
// keeps it busy, and writes its results next to the device's, so that the sum over the ranks treats both
// alike.
//
// The copy of the rows is covered by the wait that the layer needs anyhow. The results go back through the
// device's queue once the CPU has finished all of them.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class CpuWork {
 public:
  struct Places {  // all outlive this object
    Backend* device = nullptr;
    Backend* cpu = nullptr;
    const std::vector<LayerWeights>* weights = nullptr;  // on the device
  };
  // `tokens`: rows of a step. `counts`: also count the active neurons. RESOURCE_EXHAUSTED: not enough memory.
  static absl::StatusOr<std::unique_ptr<CpuWork>> Create(const ModelConfig& config, uint32_t tokens,
                                                         bool counts, const Places& places);

  // Queues on the device the copy of a layer's rows to the CPU: `normed` [tokens, hidden], and the first time
  // the experts' biases. The CPU may read them once the copy is known to have run. 0 tokens: the CPU computes
  // nothing.
  absl::Status Ask(uint32_t layer, const Rows& normed, uint32_t tokens);

  // Starts experts of the layer whose rows were copied; `args` as for the device. The weights are in the
  // CPU's memory; biases, y, active and inputs scaled by the router's `weights` [tokens, ranks] (null: not
  // scaled) are replaced by the CPU's own. A work that does not begin with the first neuron continues from
  // the device's y, after a wait for it.
  absl::Status Begin(const MoeExpertsArgs& args, const float* weights);
  bool busy() const { return !slots_.empty(); }

  // Waits for all started work, and queues on the device the copy of the results to y and active.
  absl::Status Finish(const Rows& y, BufferRef active);
  // Waits after an error, and drops the started work.
  void Abandon();

 private:
  CpuWork(const ModelConfig& config, uint32_t tokens, const Places& places);
  absl::Status Allocate(bool counts);
  absl::Status CopyBiases(uint32_t layer);
  absl::Status Scale(const MoeExpertsArgs& args, const float* weights);
  absl::Status GoOn(const MoeExpertsArgs& args, const ExpertWork& work);
  absl::StatusOr<BufferRef> Memory(uint64_t values, float** host);

  // A layer's biases in the CPU's memory; empty before the first copy, or if the layer has none.
  struct Biases {
    BufferRef up;
    BufferRef gate;
    BufferRef down;
  };

  const ModelConfig& config_;
  const uint32_t tokens_;
  Backend* const device_;
  Backend* const cpu_;
  const std::vector<LayerWeights>& weights_;
  uint32_t layer_ = 0;
  uint32_t rows_ = 0;              // copied for the running layer
  bool scaled_ready_ = false;      // scaled_ holds the layer's inputs
  std::vector<Biases> biases_;     // by layer
  std::vector<ExpertWork> works_;  // scratch of one call
  std::vector<uint32_t> slots_;    // started and not finished
  // The CPU's memory, read and written by the host while the CPU is idle; T = tokens, K = maximum ranks.
  Rows x_;            // [T, hidden]
  Rows scaled_;       // [T * K, hidden], if a router scales
  BufferRef ranks_;   // float32 [T, K], if a router scales
  Rows y_;            // [T * K, hidden]
  BufferRef active_;  // uint32 [T * K], if counts are wanted
  float* x_host_ = nullptr;
  float* ranks_host_ = nullptr;
  float* y_host_ = nullptr;
  float* active_host_ = nullptr;
};

}  // namespace sluice::inferd
