// The row and the expert that a block computes: of a listed pair, or of a pair that a router chose.
#pragma once

#include "kernels/cuda/device/experts/experts.h"

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
  block.blocks = launch.blocks + uint64_t{blockIdx.y} * launch.block_count * launch.block_bytes;
  return block;
}

}  // namespace sluice::cuda
