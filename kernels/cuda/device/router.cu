#include <cmath>

#include "kernels/cuda/device/choice.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kMaxExperts = 3072;  // of 48 KiB of shared memory, 16 bytes each
constexpr unsigned kNone = 0xffffffffu;

// The larger value, ties to the lower index; kNone is less than all.
struct Best {
  float value = 0;
  unsigned index = kNone;
  __device__ void Take(float other, unsigned at) {
    if (at != kNone && (index == kNone || other > value || (other == value && at < index))) {
      value = other;
      index = at;
    }
  }
};

// The best of value(i), first <= i < end, over all lanes; `taken` ones are left out.
template <typename Value>
__device__ inline Best BestOf(unsigned first, unsigned end, const uint8_t* taken, Value value) {
  Best best;
  for (unsigned i = first + threadIdx.x; i < end; i += kLanes) {
    if (taken[i] == 0) {
      best.Take(value(i), i);
    }
  }
  for (int distance = 16; distance != 0; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best.value, distance);
    const unsigned at = __shfl_xor_sync(kAllLanes, best.index, distance);
    best.Take(other, at);
  }
  return best;
}

__device__ inline float MaxOf(const float* values, unsigned count) {
  float m = -INFINITY;
  for (unsigned i = threadIdx.x; i < count; i += kLanes) {
    m = fmaxf(m, values[i]);
  }
  return WarpMax(m);
}

// Marks the experts of groups that do not take part.
__device__ inline void LeaveOutGroups(const RouterLaunch& launch, const float* values, uint8_t* taken,
                                      uint8_t* group_taken, float* group_scores) {
  const unsigned size = launch.experts / launch.groups;
  for (unsigned g = 0; g < launch.groups; ++g) {
    const auto value = [=](unsigned i) { return values[i]; };
    const Best first = BestOf(g * size, (g + 1) * size, taken, value);
    float score = first.value;
    if (launch.group_score == GroupScore::kTopTwoSum) {
      __syncwarp();
      if (threadIdx.x == 0) {
        taken[first.index] = 1;
      }
      __syncwarp();
      score = score + BestOf(g * size, (g + 1) * size, taken, value).value;
      __syncwarp();
      if (threadIdx.x == 0) {
        taken[first.index] = 0;
      }
    }
    if (threadIdx.x == 0) {
      group_scores[g] = score;
      group_taken[g] = 0;
    }
  }
  __syncwarp();
  for (unsigned i = 0; i < launch.top_groups; ++i) {
    const Best best = BestOf(0, launch.groups, group_taken, [=](unsigned g) { return group_scores[g]; });
    __syncwarp();
    if (threadIdx.x == 0) {
      group_taken[best.index] = 1;
    }
    __syncwarp();
  }
  for (unsigned i = threadIdx.x; i < launch.experts; i += kLanes) {
    taken[i] = group_taken[i / size] == 0 ? 1 : 0;
  }
  __syncwarp();
}

struct Place {
  int32_t* ids;
  float* weights;
  __device__ void Put(unsigned rank, unsigned expert, float weight) const {
    if (threadIdx.x == 0) {
      ids[rank] = static_cast<int>(expert);
      weights[rank] = weight;
    }
  }
};

// A routed expert's weight, scaled.
__device__ inline float Scaled(const RouterLaunch& launch, float weight, unsigned expert) {
  const float scaled = weight * launch.routed_scale;
  return launch.expert_scale == nullptr ? scaled : scaled * launch.expert_scale[expert];
}

// The expert that a fixed choice has at a rank; one beyond the last counts as the last.
__device__ inline unsigned FixedExpert(const RouterLaunch& launch, unsigned rank) {
  const float number = launch.fixed.base[blockIdx.x * launch.fixed.stride + rank];
  const float most = static_cast<float>(launch.experts - 1);
  return number > 0 ? static_cast<unsigned>(number < most ? number : most) : 0;
}

// softmax_topk, sigmoid_topk and sqrt_softplus_topk.
__device__ inline void RouteByScore(const RouterLaunch& launch, const float* logits, float* scores,
                                    float* choice, uint8_t* taken, uint8_t* group_taken, float* group_scores,
                                    float* chosen, const Place& place) {
  const bool roots = launch.kind == RouterKind::kSqrtSoftplusTopK;
  const bool own_scores = roots || launch.kind == RouterKind::kSigmoidTopK;
  const unsigned lane = threadIdx.x;
  float total = 0;
  if (own_scores) {
    for (unsigned i = lane; i < launch.experts; i += kLanes) {
      scores[i] = roots ? sqrtf(Softplus(logits[i])) : Sigmoid(logits[i]);
    }
  } else {
    const float m = MaxOf(logits, launch.experts);
    for (unsigned i = lane; i < launch.experts; i += kLanes) {
      scores[i] = Exp(logits[i] - m);
      total += scores[i];
    }
    total = WarpTreeSum(total);
    for (unsigned i = lane; i < launch.experts; i += kLanes) {
      scores[i] = scores[i] / total;
    }
  }
  for (unsigned i = lane; i < launch.experts; i += kLanes) {
    const float value = launch.by_logit ? logits[i] : scores[i];
    choice[i] = launch.correction == nullptr ? value : value + launch.correction[i];
  }
  __syncwarp();
  if (launch.groups != 0) {
    LeaveOutGroups(launch, choice, taken, group_taken, group_scores);
  }
  float sum = 0;
  for (unsigned r = 0; r < launch.top_k; ++r) {
    const unsigned expert =
        launch.fixed.base != nullptr
            ? FixedExpert(launch, r)
            : BestOf(0, launch.experts, taken, [=](unsigned i) { return choice[i]; }).index;
    const float score = scores[expert];
    sum = sum + score;
    __syncwarp();
    if (lane == 0) {
      taken[expert] = 1;
      place.ids[r] = static_cast<int>(expert);
      chosen[r] = score;
    }
    __syncwarp();
  }
  if (own_scores) {
    sum = sum + launch.norm_epsilon;
  }
  for (unsigned r = lane; r < launch.top_k; r += kLanes) {
    const float weight = launch.normed ? chosen[r] / sum : chosen[r];
    place.weights[r] = Scaled(launch, weight, static_cast<unsigned>(place.ids[r]));
  }
}

// topk_softmax and sigmoid_input.
__device__ inline void RouteByLogit(const RouterLaunch& launch, const float* logits, uint8_t* taken,
                                    float* chosen, const Place& place) {
  const unsigned lane = threadIdx.x;
  for (unsigned r = 0; r < launch.top_k; ++r) {
    const Best best = BestOf(0, launch.experts, taken, [=](unsigned i) { return logits[i]; });
    __syncwarp();
    if (lane == 0) {
      taken[best.index] = 1;
      place.ids[r] = static_cast<int>(best.index);
      chosen[r] = best.value;
    }
    __syncwarp();
  }
  const float m = chosen[0];
  float total = 0;
  for (unsigned r = lane; r < launch.top_k; r += kLanes) {
    total += Exp(chosen[r] - m);
  }
  total = WarpTreeSum(total);
  for (unsigned r = lane; r < launch.top_k; r += kLanes) {
    const float weight =
        launch.kind == RouterKind::kTopKSoftmax ? Exp(chosen[r] - m) / total : Sigmoid(chosen[r]);
    place.weights[r] = Scaled(launch, weight, static_cast<unsigned>(place.ids[r]));
  }
}

__device__ inline void SparseMixer(const RouterLaunch& launch, const float* logits, uint8_t* taken,
                                   const Place& place) {
  for (unsigned r = 0; r < 2; ++r) {
    const Best best = BestOf(0, launch.experts, taken, [=](unsigned i) { return logits[i]; });
    const float m = best.value;
    float total = 0;
    for (unsigned i = threadIdx.x; i < launch.experts; i += kLanes) {
      const float size = fabsf(logits[i]);
      const bool masked = (m - logits[i]) / (size < m ? m : size) > 2 * launch.jitter || taken[i] != 0;
      total += masked ? 0.0f : Exp(logits[i] - m);
    }
    total = WarpTreeSum(total);
    place.Put(r, best.index, Scaled(launch, Exp(best.value - m) / total, best.index));
    __syncwarp();
    if (threadIdx.x == 0) {
      taken[best.index] = 1;
    }
    __syncwarp();
  }
}

// A row's weights, best first, cut to as many as are enough. By one thread: the additions in double precision
// are those of the host, in its order.
__device__ inline void Cut(const RouterLaunch& launch, float* weights) {
  double sum = 0;
  for (unsigned r = 0; r < launch.top_k; ++r) {
    sum += weights[r];
  }
  double first = 0;
  unsigned kept = 1;
  for (; kept < launch.top_k; ++kept) {
    first += weights[kept - 1];
    const double left = sum > 0 ? 1 - first / sum : 0;
    const double rest = left > 0 ? left : 0;
    if (rest * rest * launch.cut_sensitivity <= launch.cut_limit) {
      break;
    }
  }
  for (unsigned r = 0; kept < launch.top_k && r < launch.top_k; ++r) {
    weights[r] = r < kept && first > 0 ? static_cast<float>(weights[r] * (sum / first)) : 0.0f;
  }
}

// A warp a token: its logits in shared memory, the best found top_k times over, 128 neighbouring bytes a
// load. Bytes: experts * 4 read. Bound: latency, top_k * experts / 32 steps.
__global__ void __launch_bounds__(kLanes) RouterKernel(RouterLaunch launch) {
  extern __shared__ float shared[];
  const unsigned experts = launch.experts;
  float* const logits = shared;
  float* const scores = logits + experts;
  float* const choice = scores + experts;
  float* const chosen = choice + experts;             // [top_k]
  float* const group_scores = chosen + launch.top_k;  // [groups]
  uint8_t* const taken = reinterpret_cast<uint8_t*>(group_scores + launch.groups);
  uint8_t* const group_taken = taken + experts;
  const unsigned t = blockIdx.x;
  for (unsigned i = threadIdx.x; i < experts; i += kLanes) {
    logits[i] = launch.logits[t * launch.stride + i];
    taken[i] = 0;
  }
  __syncwarp();
  const uint64_t ranks = launch.top_k + (launch.shared ? 1 : 0);
  const Place place = {launch.ids + t * ranks, launch.weights + t * ranks};
  if (launch.kind == RouterKind::kSparseMixer) {
    SparseMixer(launch, logits, taken, place);
  } else if (launch.kind == RouterKind::kTopKSoftmax || launch.kind == RouterKind::kSigmoidInput) {
    RouteByLogit(launch, logits, taken, chosen, place);
  } else {
    RouteByScore(launch, logits, scores, choice, taken, group_taken, group_scores, chosen, place);
  }
  if (launch.cut) {
    __syncwarp();
    if (threadIdx.x == 0) {
      Cut(launch, place.weights);
    }
  }
  if (launch.shared) {
    const float weight =
        launch.shared_logits == nullptr ? 1.0f : Sigmoid(launch.shared_logits[t * launch.shared_stride]);
    place.Put(launch.top_k, experts, weight);
  }
}

}  // namespace

cudaError_t EnqueueRouter(const RouterLaunch& launch, Launcher& launcher) {
  if (launch.experts > kMaxExperts) {
    return cudaErrorInvalidValue;
  }
  const uint64_t shared =
      4 * (3 * uint64_t{launch.experts} + launch.top_k + launch.groups) + launch.experts + launch.groups;
  return launcher.Launch(RouterKernel, launch.tokens, kLanes, shared, launch);
}

}  // namespace sluice::cuda
