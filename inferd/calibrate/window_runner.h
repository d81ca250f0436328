// Calibration windows: their routing (CalibrationRouting) and their runs through the model (WindowRunner).
// Routing is the model's choice, reduced to the best expert in one layer or by a gating rule.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/forward/engine_parts.h"
#include "inferd/forward/forward.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "inferd/model/step_batch.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/routing.h"
#include "inferd/policy/sparsity.h"

namespace sluice::inferd {

class CalibrationRouting final : public RoutingPolicy {
 public:
  explicit CalibrationRouting(Backend* backend) : backend_(backend) {}

  // `single_layer` uses its best expert alone, with the weight of all; -1: none. `gating` (may be null)
  // applies to every row.
  void Use(int single_layer, const GatingRule* gating) {
    single_layer_ = single_layer;
    gating_ = gating;
  }
  absl::Status Choose(const RoutingInput& input, Queue* queue) override { return topk_.Choose(input, queue); }
  absl::Status Decide(const RoutingInput& input, Queue* queue) override;

 private:
  Backend* const backend_;
  TopKRouting topk_;
  int single_layer_ = -1;
  const GatingRule* gating_ = nullptr;
};

// Runs calibration windows through the model: its own forward pass, with its own KV cache and hooks, beside
// the one that serves clients. The weights, the backend and the weightd client are shared.
//
// Thread safety: thread-compatible; belongs to the engine thread, between its steps.

// A window's input tokens, and the tokens whose probability is measured: targets[i] follows the input
// position input.size() - targets.size() + i.
struct CalibrationWindow {
  std::vector<int32_t> input;
  std::vector<int32_t> targets;
};

class WindowRunner {
 public:
  // Creates a runner for windows of up to `positions`. `parts` outlive it; their backend is a scoped one,
  // which frees the runner's buffers. INVALID_ARGUMENT if the engine's steps or context are smaller.
  static absl::StatusOr<std::unique_ptr<WindowRunner>> Create(const ModelParts& parts, uint32_t positions,
                                                              std::unique_ptr<SparsityPolicy> sparsity);
  ~WindowRunner();

  struct Hooks {
    LayerObserver* observer = nullptr;  // may be null
    int single_expert_layer = -1;       // this layer uses its best expert alone, with the weight of all
    const float* residual = nullptr;    // [positions, hidden] into `first_layer`; null: from the tokens
    uint32_t first_layer = 0;
    const GatingRule* gating = nullptr;  // rule that reduces experts; null: none
    // True if the loss is needed. A window that only observes layers skips it: with 100000 tokens in the
    // vocabulary the head takes as long as several layers.
    bool loss = true;
  };
  // Returns the summed loss of the window's targets, nats; 0 without `loss`. With a first layer the window
  // must be the last one that ran. `step` numbers ascend from call to call.
  absl::StatusOr<double> Run(const CalibrationWindow& window, const Hooks& hooks, uint64_t step);

  // Copies `rows` rows of `width` floats to host memory, packed.
  absl::Status Read(Rows from, uint32_t rows, uint32_t width, float* to) const;

  const ModelParts& parts() const { return parts_; }

  // Scratch for hooks: two sets of rows, [positions, the maximum of hidden, expert width and experts].
  Rows scratch(int i) const { return scratch_[i]; }
  // Returns a row of host-visible memory; null if it is out of range.
  const float* HostRow(Rows rows, uint32_t row, uint32_t width) const;

 private:
  class SwitchedHook;

  WindowRunner(const ModelParts& parts, uint32_t positions, std::unique_ptr<SparsityPolicy> sparsity);
  absl::Status Setup();
  absl::Status WriteResidual(const float* values, uint32_t rows);
  absl::StatusOr<double> Loss(const CalibrationWindow& window);

  const ModelParts parts_;
  const uint32_t positions_;
  const std::unique_ptr<SparsityPolicy> sparsity_;
  ForwardOptions options_;
  std::unique_ptr<SwitchedHook> observer_;
  std::unique_ptr<CalibrationRouting> routing_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<RecurrentStates> states_;
  std::unique_ptr<Forward> forward_;
  std::array<Rows, 2> scratch_;
  StepBatch batch_;
};

}  // namespace sluice::inferd
