// Which row of which expert a block computes: of the expert's own list, or of the pair that a router chose.
#pragma once

#include "kernels/cuda/device/experts.h"

namespace sluice::cuda {

constexpr unsigned kNoExpert = 0xffffffffu;

// The pair of a block of a grid of (?, top_ranks, tokens), and its expert; kNoExpert: it is left out.
struct BlockPair {
  unsigned pair;
  unsigned expert;
};
__device__ inline BlockPair PairOfBlock(const RoutedPairs& routed, unsigned experts) {
  const unsigned pair = blockIdx.z * routed.ranks + blockIdx.y;
  const unsigned id = static_cast<unsigned>(routed.ids[pair]);
  const bool out = id >= experts || (routed.weights != nullptr && routed.weights[pair] == 0.0f);
  return {pair, out ? kNoExpert : id};
}

// What a block of CoefficientsKernel or DownKernel has; no expert: nothing.
struct ExpertRow {
  const DeviceExpert* expert = nullptr;
  const float* lead_values = nullptr;
  float* coefficients = nullptr;
  unsigned row = 0;   // of x
  unsigned slot = 0;  // of y
};
__device__ inline ExpertRow RowOfBlock(const ExpertsLaunch& launch) {
  ExpertRow row;
  if (launch.routed.ids != nullptr) {
    const BlockPair block = PairOfBlock(launch.routed, launch.expert_count);
    if (block.expert != kNoExpert) {
      row.expert = &launch.experts[block.expert];
      row.coefficients = launch.coefficients + block.pair * launch.coefficient_stride;
      row.row = launch.routed.by_slot ? block.pair : blockIdx.z;
      row.slot = block.pair;
    }
    return row;
  }
  const DeviceExpert& e = launch.experts[blockIdx.y];
  const unsigned i = blockIdx.z;
  if (i < e.row_count) {
    row.expert = &e;
    row.coefficients = e.coefficients + i * e.coefficient_stride;
    row.lead_values = e.lead_values == nullptr ? nullptr : e.lead_values + i * e.lead_stride;
    row.row = e.rows[i];
    row.slot = e.slots[i];
  }
  return row;
}

// The grid's y and z: a listed expert and its rows, or a pair.
inline dim3 ExpertGrid(unsigned x, const RoutedPairs& routed, unsigned experts, unsigned max_rows) {
  return routed.ids == nullptr ? dim3(x, experts, max_rows) : dim3(x, routed.top_ranks, routed.tokens);
}

}  // namespace sluice::cuda
