#include "weightd/dram/dram_default.h"

#include <algorithm>
#include <set>
#include <string>

#include "pack/pack.h"

namespace sluice::weightd {

uint64_t MinDramBudget(const WeightSizes& sizes, uint32_t threads) {
  return sizes.dense + 2 * sizes.largest_expert * threads;
}

uint64_t DefaultDramBudget(const WeightSizes& sizes, uint32_t threads, uint64_t usable) {
  return std::min(std::max(sizes.all, MinDramBudget(sizes, threads)), usable / 10 * 7);
}

uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable) {
  WeightSizes sizes;
  std::set<std::string> counted;
  for (const Pack* pack : packs) {
    if (!counted.insert(pack->model_id()).second) continue;  // the store also holds it only once
    sizes.all += pack->dense_bytes() + pack->total_expert_bytes();
    sizes.dense += pack->dense_bytes();
    sizes.largest_expert = std::max(sizes.largest_expert, pack->largest_expert_bytes());
  }
  return DefaultDramBudget(sizes, threads, usable);
}

}  // namespace sluice::weightd
