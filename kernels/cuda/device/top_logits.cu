#include "kernels/cuda/device/choice.cuh"
#include "kernels/cuda/device/choice.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kBins = 256;
constexpr unsigned kExpChunk = 4096;  // exponentials made at once, 16 KiB

// Calls visit(i, logits[i]) for all of a row; a thread has eight loads in flight.
template <typename Visit>
__device__ inline void ForEachLogit(const float* logits, unsigned vocab, Visit visit) {
  constexpr unsigned kLoads = 8;
  unsigned first = threadIdx.x;
  for (; first + (kLoads - 1) * kThreads < vocab; first += kLoads * kThreads) {
    float values[kLoads];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) {
      values[i] = logits[first + i * kThreads];
    }
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) {
      visit(first + i * kThreads, values[i]);
    }
  }
#pragma unroll 1
  for (; first < vocab; first += kThreads) {
    visit(first, logits[first]);
  }
}

// The order of section 8 as one number: larger is better, a lower index better among equals.
__device__ inline unsigned long long OrderOf(float logit, unsigned index) {
  return static_cast<unsigned long long>(OrderedBits(logit)) << 32 | (0xffffffffu - index);
}

// The k-th best order of a row, found byte by byte from the highest: of the values that agree so far, how
// many have which next byte. The index's highest byte is the same for all.
__device__ inline unsigned long long KthBest(const float* logits, unsigned vocab, unsigned k, unsigned* bins,
                                             unsigned* found) {
  unsigned long long prefix = 0;
  unsigned wanted = k;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (unsigned i = threadIdx.x; i < kBins; i += kThreads) {
      bins[i] = 0;
    }
    __syncthreads();
    ForEachLogit(logits, vocab, [&](unsigned i, float logit) {
      const unsigned long long order = OrderOf(logit, i);
      if (shift == 56 || order >> (shift + 8) == prefix >> (shift + 8)) {
        atomicAdd(&bins[order >> shift & 0xff], 1u);
      }
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned left = wanted;
      unsigned bin = kBins - 1;
      while (bins[bin] < left) {
        left -= bins[bin];
        --bin;
      }
      found[0] = bin;
      found[1] = left;
    }
    __syncthreads();
    prefix |= static_cast<unsigned long long>(found[0]) << shift;
    wanted = found[1];
    __syncthreads();
  }
  return prefix;
}

// Sorts shared orders, the largest first; `count` is a power of two.
__device__ inline void Sort(unsigned long long* orders, unsigned count) {
  for (unsigned size = 2; size <= count; size *= 2) {
    for (unsigned distance = size / 2; distance != 0; distance /= 2) {
      for (unsigned i = threadIdx.x; i < count / 2; i += kThreads) {
        const unsigned low = i / distance * 2 * distance + i % distance;
        const unsigned high = low + distance;
        const bool descending = (low & size) == 0;
        const unsigned long long a = orders[low];
        const unsigned long long b = orders[high];
        if ((a < b) == descending) {
          orders[low] = b;
          orders[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The lane sum of exp(l - largest): the block makes exponentials, warp 0 adds them up in their order.
__device__ inline float SumOfExp(const float* logits, unsigned vocab, float largest, float* exps) {
  float sum = 0;
  for (unsigned first = 0; first < vocab; first += kExpChunk) {
    const unsigned count = min(kExpChunk, vocab - first);
    for (unsigned i = threadIdx.x; i < count; i += kThreads) {
      exps[i] = Exp(logits[first + i] - largest);
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {
      for (unsigned i = threadIdx.x; i < count; i += kLanes) {
        sum += exps[i];
      }
    }
    __syncthreads();
  }
  return sum;
}

// A block a row. Eight passes over the row find the k-th best, one more gathers what is as good (the order of
// arrival decides nothing: what is gathered is sorted). 128 neighbouring bytes a warp a load. Bytes: vocab *
// 4, from the cache behind the first pass. Bound: latency of the passes, and of the ordered sum.
__global__ void __launch_bounds__(kThreads) TopLogitsKernel(TopLogitsCall call) {
  __shared__ unsigned long long orders[kMaxTopLogits];
  __shared__ float exps[kExpChunk];
  __shared__ unsigned bins[kBins];
  __shared__ unsigned found[2];
  __shared__ unsigned gathered;
  const float* const logits = call.logits.Row(blockIdx.x);
  const unsigned long long last = KthBest(logits, call.vocab, call.k, bins, found);
  unsigned count = 1;
  while (count < call.k) {
    count *= 2;
  }
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    orders[i] = 0;
  }
  if (threadIdx.x == 0) {
    gathered = 0;
  }
  __syncthreads();
  ForEachLogit(logits, call.vocab, [&](unsigned i, float logit) {
    const unsigned long long order = OrderOf(logit, i);
    if (order >= last) {
      orders[atomicAdd(&gathered, 1u)] = order;
    }
  });
  __syncthreads();
  Sort(orders, count);
  for (unsigned i = threadIdx.x; i < call.k; i += kThreads) {
    const unsigned index = 0xffffffffu - static_cast<unsigned>(orders[i]);
    call.ids[uint64_t{blockIdx.x} * call.k + i] = static_cast<int>(index);
    call.values[uint64_t{blockIdx.x} * call.k + i] = logits[index];
  }
  if (call.log_sum_exp != nullptr) {
    const float largest = logits[0xffffffffu - static_cast<unsigned>(orders[0])];
    const float sum = SumOfExp(logits, call.vocab, largest, exps);
    if (threadIdx.x < kLanes) {
      const float total = WarpTreeSum(sum);
      if (threadIdx.x == 0) {
        call.log_sum_exp[blockIdx.x] =
            static_cast<float>(static_cast<double>(largest) + LogOf(static_cast<double>(total)));
      }
    }
  }
}

}  // namespace

cudaError_t EnqueueTopLogits(const TopLogitsCall& call, Launcher& launcher) {
  return launcher.Launch(TopLogitsKernel, call.tokens, kThreads, 0, call);
}

}  // namespace sluice::cuda
