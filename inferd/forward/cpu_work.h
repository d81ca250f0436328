// What the CPU computes of a layer's experts beside the device: brings it the rows, keeps it busy, and puts
// its results where the device's are, so that the sum over the ranks knows no difference.
//
// Rows come with what the layer waits for anyhow. The results go back in the order of the device's queue,
// once the CPU has them all.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/model/dense_tensors.h"
#include "kernels/backend.h"

namespace sluice {

class CpuWork {
 public:
  struct Places {  // all outlive this object
    Backend* device = nullptr;
    Backend* cpu = nullptr;
    const std::vector<LayerWeights>* weights = nullptr;  // on the device
  };
  // `tokens`: rows of a step. `counts`: neurons that counted are wanted. RESOURCE_EXHAUSTED: its memory.
  static absl::StatusOr<std::unique_ptr<CpuWork>> Create(const ModelConfig& config, uint32_t tokens,
                                                         bool counts, const Places& places);

  // Queues on the device what brings the rows of a layer to the CPU: `normed` [tokens, hidden], and the first
  // time the experts' biases. They are there once that is known to have run. 0 tokens: nothing is the CPU's.
  absl::Status Ask(uint32_t layer, const Rows& normed, uint32_t tokens);

  // Begins with experts of the layer whose rows were asked for: `args` as it would be for the device. Their
  // weights are in the CPU's memory; biases, y, active and inputs that the router scaled by `weights`
  // [tokens, ranks] (null: it scaled none) are replaced by the CPU's own. A work that does not begin with the
  // first neuron goes on from what the device has in y, for which it is waited.
  absl::Status Begin(const MoeExpertsArgs& args, const float* weights);
  bool busy() const { return !slots_.empty(); }

  // Waits for all that was begun, and queues on the device what brings it to y and active.
  absl::Status Finish(const Rows& y, BufferRef active);
  // After an error: waits, and forgets what was begun.
  void Abandon();

 private:
  CpuWork(const ModelConfig& config, uint32_t tokens, const Places& places);
  absl::Status Allocate(bool counts);
  absl::Status AskBiases(uint32_t layer);
  absl::Status Scale(const MoeExpertsArgs& args, const float* weights);
  absl::Status GoOn(const MoeExpertsArgs& args, const ExpertWork& work);
  absl::StatusOr<BufferRef> Memory(uint64_t values, float** host);

  // A layer's biases in the CPU's memory; none before it was asked for the first time, or without.
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
  uint32_t rows_ = 0;              // asked for
  bool scaled_ready_ = false;      // of the layer
  std::vector<Biases> biases_;     // by layer
  std::vector<ExpertWork> works_;  // of one call
  std::vector<uint32_t> slots_;    // begun and not finished
  // The CPU's memory, which the host reads and writes while the CPU rests; T = tokens, K = most ranks.
  Rows x_;            // [T, hidden]
  Rows scaled_;       // [T * K, hidden], where a router scales
  BufferRef ranks_;   // float32 [T, K], where a router scales
  Rows y_;            // [T * K, hidden]
  BufferRef active_;  // uint32 [T * K], if counts are wanted
  float* x_host_ = nullptr;
  float* ranks_host_ = nullptr;
  float* y_host_ = nullptr;
  float* active_host_ = nullptr;
};

}  // namespace sluice
