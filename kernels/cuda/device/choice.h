// Choosing the largest: the router's experts and weights (ARITHMETIC.md section 4), and what a sampler needs
// of a row of logits (section 8).
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/operands.h"

namespace sluice::cuda {

struct RouterLaunch {
  const float* logits = nullptr;
  uint64_t stride = 0;
  uint32_t tokens = 0;
  uint32_t experts = 0;
  RouterKind kind = RouterKind::kSoftmaxTopK;
  uint32_t top_k = 0;
  bool normed = true;      // weights divided by their sum
  float norm_epsilon = 0;  // added to that sum, of scores that are functions of their logits
  float routed_scale = 1;
  const float* expert_scale = nullptr;  // [experts], or none
  const float* correction = nullptr;
  InRows fixed;  // [tokens, top_k]: the ranks' experts as numbers, or none
  float jitter = 0;
  uint32_t groups = 0;
  uint32_t top_groups = 0;
  GroupScore group_score = GroupScore::kMax;
  bool by_logit = true;  // experts are chosen by their logits, not by their scores
  bool shared = false;
  const float* shared_logits = nullptr;
  uint64_t shared_stride = 0;
  bool cut = false;  // to as many ranks as are enough (kernels/scalar_math.h)
  double cut_sensitivity = 0;
  double cut_limit = 0;
  int32_t* ids = nullptr;  // [tokens, top_k + shared]
  float* weights = nullptr;
  bool operator==(const RouterLaunch& other) const = default;
};
// cudaErrorInvalidValue above 3072 experts.
cudaError_t EnqueueRouter(const RouterLaunch& launch, Launcher& launcher);

// The vocabulary is below 2^24.
cudaError_t EnqueueTopLogits(const TopLogitsCall& call, Launcher& launcher);

}  // namespace sluice::cuda
