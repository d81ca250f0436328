// The row and the expert that a block computes: of a listed pair, or of a pair that a router chose.
#pragma once

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/experts.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {

// The expert that a router chose for a pair; kNoExpert: it is left out.
__device__ inline unsigned ExpertOf(const RoutedPairs& routed, unsigned experts, unsigned pair) {
  const unsigned id = static_cast<unsigned>(routed.ids[pair]);
  const bool out = id >= experts || (routed.weights != nullptr && routed.weights[pair] == 0.0f);
  return out ? kNoExpert : id;
}

// The pair of a block of a grid of (?, pairs); empty without an expert.
struct PairOfBlock {
  const DeviceExpert* expert = nullptr;
  ExpertPair pair;
  uint8_t* blocks = nullptr;
};
__device__ inline PairOfBlock PairOf(const ExpertsLaunch& launch) {
  PairOfBlock block;
  const unsigned p = launch.first_pair + blockIdx.y;
  if (launch.routed.ids != nullptr) {
    const unsigned expert = ExpertOf(launch.routed, launch.expert_count, p);
    if (expert == kNoExpert) {
      return block;
    }
    block.pair = {expert, launch.routed.by_slot ? p : p / launch.routed.ranks, p, 0};
  } else {
    block.pair = launch.pairs[p];
    if (block.pair.expert == kNoExpert) {
      return block;
    }
  }
  block.expert = &launch.experts[block.pair.expert];
  block.blocks = launch.blocks + uint64_t{blockIdx.y} * launch.pair_bytes;
  return block;
}

// The blocks' counted neurons of a pair whose down part is by outputs.
__device__ inline unsigned* CountsOf(const ExpertsLaunch& launch, uint8_t* pair) {
  return reinterpret_cast<unsigned*>(pair + CoefficientRow(launch.block_count));
}

// Writes a block of neurons of a pair for the sums over down rows (experts.h: NeuronBlock).

// The threads that write a block together: all threads of a thread block, or a warp.
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

// Neurons of a block that are wanted, in ascending order; the last one again up to whole fours.
struct NeuronList {
  unsigned count;
  uint8_t neurons[kNeurons];
  // Neurons i .. i + 3, i a multiple of 4, a byte each.
  __device__ unsigned Four(unsigned i) const { return *reinterpret_cast<const unsigned*>(neurons + i); }
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
  const unsigned count = __popc(low) + __popc(high);
  if (lane == 0) {
    list->count = count;
  }
  if (count + lane < (count + 3) / 4 * 4) {
    list->neurons[count + lane] = static_cast<uint8_t>(high != 0 ? 63 - __clz(static_cast<int>(high))
                                                                 : 31 - __clz(static_cast<int>(low)));
  }
}

// The sum of codes times zeros over neighbouring lanes in the order of their neurons: each lane adds its own
// `own` to what the lanes below it have. `lanes` of kWidth have any; all kWidth get the sum.
template <unsigned kWidth, unsigned kCount>
__device__ inline float OrderedSum(const int (&codes)[kCount], const float (&zeros)[kCount], unsigned own,
                                   unsigned lanes) {
  float sum = 0;
  for (unsigned from = 0; from < lanes; ++from) {
    if (threadIdx.x % kWidth == from) {
#pragma unroll
      for (unsigned i = 0; i < kCount; ++i) {
        if (i < own) {
          sum = fmaf(static_cast<float>(codes[i]), zeros[i], sum);
        }
      }
    }
    sum = __shfl_sync(kAllLanes, sum, static_cast<int>(from), kWidth);
  }
  return sum;
}

// Rounds the kept coefficients times the down rows' scales over the block (section 3): eight lanes a group of
// columns, eight neighbouring neurons each, whose scales and zeros are loaded at once. scale(row, g) and
// zero(row, g) are those of a group.
template <typename Party, typename Scale, typename Zero>
__device__ inline void RoundKept(const DeviceMatrix& down, unsigned first, const NeuronList& list,
                                 const float* kept, uint8_t* place, Scale scale, Zero zero) {
  constexpr unsigned kRoundLanes = 8;
  constexpr unsigned kRoundNeurons = kNeurons / kRoundLanes;
  const unsigned groups = GroupsOf(down.cols, down.group);
  const unsigned lane = Party::Index() % kRoundLanes;
  const unsigned begin = lane * kRoundNeurons;
  const unsigned own = begin < list.count ? min(kRoundNeurons, list.count - begin) : 0;
  const unsigned lanes = (list.count + kRoundNeurons - 1) / kRoundNeurons;  // that have neurons
  // All lanes of a warp take part in each round, with or without a group.
  for (unsigned round = 0; round < groups; round += Party::Size() / kRoundLanes) {
    const unsigned g = round + Party::Index() / kRoundLanes;
    const bool inside = g < groups;
    float values[kRoundNeurons] = {};
    float zeros[kRoundNeurons] = {};
    float largest = 0;
#pragma unroll
    for (unsigned four = 0; four < kRoundNeurons; four += 4) {
      if (inside && four < own) {
        const uint8_t* rows[4];
        RowsOfFour(down, first, list.Four(begin + four), rows);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          values[four + i] = kept[begin + four + i] * scale(rows[i], g);
          zeros[four + i] = zero(rows[i], g);
        }
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kRoundNeurons; ++i) {
      largest = fmaxf(largest, fabsf(values[i]));
    }
    largest = MaxWithin<kRoundLanes / 2>(largest);
    const bool tiny = largest < 1e-30f;
    const float inverse = 127.0f / largest;
    int codes[kRoundNeurons];
#pragma unroll
    for (unsigned i = 0; i < kRoundNeurons; ++i) {
      codes[i] = tiny || i >= own ? 0 : RoundCode(values[i] * inverse);
    }
    const float sum = OrderedSum<kRoundLanes>(codes, zeros, own, lanes);
    if (!inside) {
      continue;
    }
    unsigned* const words = reinterpret_cast<unsigned*>(place + BlockCodes(groups));
#pragma unroll
    for (unsigned four = 0; four < kRoundNeurons; four += 4) {
      if (four < own) {
        unsigned word = 0;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          word |= (static_cast<unsigned>(codes[four + i]) & 0xffu) << (8 * i);
        }
        words[(begin + four) / 4 * groups + g] = word;
      }
    }
    if (lane == 0) {
      reinterpret_cast<float*>(place + BlockScales())[g] = tiny ? 0.0f : largest / 127.0f;
      reinterpret_cast<float*>(place + BlockZeros(groups))[g] = sum + 0.0f;
    }
  }
}

template <typename Party>
__device__ inline void RoundKept(const DeviceMatrix& down, unsigned first, const NeuronList& list,
                                 const float* kept, uint8_t* place) {
  if (down.encoding != Encoding::kMxfp4 && down.numbers == Numbers::kHalves) {
    // Most rows: nothing is asked for each neuron.
    RoundKept<Party>(
        down, first, list, kept, place,
        [&](const uint8_t* row, unsigned g) { return HalfAt(row + down.scales + 2 * g); },
        [&](const uint8_t* row, unsigned g) { return HalfAt(row + down.zeros + 2 * g); });
    return;
  }
  RoundKept<Party>(
      down, first, list, kept, place, [&](const uint8_t* row, unsigned g) { return ScaleOf(down, row, g); },
      [&](const uint8_t* row, unsigned g) { return ZeroOf(down, row, g); });
}

// Writes a block: `list` are the kept neurons, coefficient(n) is that of neuron n. `kept`: float[kNeurons],
// shared, the party's own. The party has waited for the list.
template <typename Party, typename Coefficient>
__device__ inline void WriteBlock(const DeviceMatrix& down, unsigned first, unsigned counted,
                                  const NeuronList& list, float* kept, uint8_t* place,
                                  Coefficient coefficient) {
  NeuronBlock* const block = reinterpret_cast<NeuronBlock*>(place);
  for (unsigned i = Party::Index(); i < (list.count + 3) / 4 * 4; i += Party::Size()) {
    const unsigned n = list.neurons[i];
    kept[i] = coefficient(n);
    block->coefficients[i] = kept[i];
    block->neurons[i] = static_cast<uint8_t>(n);
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
