#include "weightd/dram/dram_default.h"

#include <algorithm>
#include <set>
#include <string>

#include "pack/pack.h"

namespace sluice {

uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable) {
  uint64_t all = 0;
  uint64_t dense = 0;
  uint64_t largest = 0;
  std::set<std::string> counted;
  for (const Pack* pack : packs) {
    if (!counted.insert(pack->model_id()).second) continue;  // the store holds it once, too
    all += pack->dense_bytes() + pack->total_expert_bytes();
    dense += pack->dense_bytes();
    largest = std::max(largest, pack->largest_expert_bytes());
  }
  const uint64_t least = dense + 2 * largest * threads;
  return std::min(std::max(all, least), usable / 10 * 7);
}

}  // namespace sluice
