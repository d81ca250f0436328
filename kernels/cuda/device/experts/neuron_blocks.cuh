// How a block of neurons of a pair is written for the sums over down rows (experts.h: NeuronBlock).
#pragma once

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/experts/experts.h"
#include "kernels/cuda/device/warp.cuh"

namespace sluice::cuda {

// Who writes a block together: all threads of a block of threads, or a warp.
struct WholeBlock {
  static __device__ unsigned Index() { return threadIdx.x; }
  static __device__ unsigned Size() { return blockDim.x; }
  static __device__ void Wait() { __syncthreads(); }
};
struct OneWarp {
  static __device__ unsigned Index() { return threadIdx.x % kLanes; }
  static __device__ unsigned Size() { return kLanes; }
  static __device__ void Wait() { __syncwarp(); }
};

// Neurons of a block that are wanted, in ascending order.
struct NeuronList {
  unsigned count;
  uint8_t neurons[kNeurons];
};

// The list of the neurons whose flag is set, by the 32 lanes of a warp; low and high: whether neuron `lane`
// and `lane` + 32 are. Others have to wait.
__device__ inline void CompactByWarp(bool low_in, bool high_in, NeuronList* list) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned low = __ballot_sync(kAllLanes, low_in);
  const unsigned high = __ballot_sync(kAllLanes, high_in);
  const unsigned below = (1u << lane) - 1;
  if (low_in) {
    list->neurons[__popc(low & below)] = static_cast<uint8_t>(lane);
  }
  if (high_in) {
    list->neurons[__popc(low) + __popc(high & below)] = static_cast<uint8_t>(lane + kLanes);
  }
  if (lane == 0) {
    list->count = __popc(low) + __popc(high);
  }
}

// Rounds the kept coefficients times the down rows' scales over the block, a thread a group of columns
// (section 3): 64 neighbouring bytes of a row's scales a warp, and of its zeros.
template <typename Party>
__device__ inline void RoundKept(const DeviceMatrix& down, unsigned first, const NeuronList& list,
                                 const float* kept, uint8_t* place) {
  const unsigned groups = GroupsOf(down.cols, down.group);
  for (unsigned g = Party::Index(); g < groups; g += Party::Size()) {
    float largest = 0;
#pragma unroll 4
    for (unsigned i = 0; i < list.count; ++i) {
      largest = fmaxf(largest, fabsf(kept[i] * ScaleOf(down, RowOf(down, first + list.neurons[i]), g)));
    }
    const bool tiny = largest < 1e-30f;
    const float inverse = 127.0f / largest;
    float zeros = 0;
    for (unsigned four = 0; four < list.count; four += 4) {
      unsigned codes = 0;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        if (four + i < list.count) {
          const uint8_t* const row = RowOf(down, first + list.neurons[four + i]);
          const int code = tiny ? 0 : RoundCode(kept[four + i] * ScaleOf(down, row, g) * inverse);
          zeros = fmaf(static_cast<float>(code), ZeroOf(down, row, g), zeros);
          codes |= (static_cast<unsigned>(code) & 0xffu) << (8 * i);
        }
      }
      reinterpret_cast<unsigned*>(place + BlockCodes(groups))[four / 4 * groups + g] = codes;
    }
    reinterpret_cast<float*>(place + BlockScales())[g] = tiny ? 0.0f : largest / 127.0f;
    reinterpret_cast<float*>(place + BlockZeros(groups))[g] = zeros + 0.0f;
  }
}

// Writes a block: `list` are the kept neurons, coefficient(n) is that of neuron n. `kept`: float[kNeurons],
// shared, the party's own. The party has waited for the list.
template <typename Party, typename Coefficient>
__device__ inline void WriteBlock(const DeviceMatrix& down, unsigned first, unsigned counted,
                                  const NeuronList& list, float* kept, uint8_t* place,
                                  Coefficient coefficient) {
  NeuronBlock* const block = reinterpret_cast<NeuronBlock*>(place);
  for (unsigned i = Party::Index(); i < list.count; i += Party::Size()) {
    kept[i] = coefficient(list.neurons[i]);
    block->coefficients[i] = kept[i];
  }
  for (unsigned i = Party::Index(); i < (list.count + 3) / 4 * 4; i += Party::Size()) {
    block->neurons[i] = list.neurons[min(i, list.count - 1)];
  }
  if (Party::Index() == 0) {
    block->kept = list.count;
    block->counted = counted;
  }
  Party::Wait();
  if (!IsPlain(down.encoding)) {
    RoundKept<Party>(down, first, list, kept, place);
  }
}

}  // namespace sluice::cuda
