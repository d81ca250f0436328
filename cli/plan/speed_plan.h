// Tokens a second of one sequence, from rates, sizes and hits.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "cli/plan/host_rates.h"
#include "cli/plan/memory_plan.h"
#include "cli/plan/model_facts.h"

namespace sluice::cli {

struct SpeedInput {
  KernelRates kernels;
  double disk = 0;  // bytes a second
  double link = 0;  // bytes a second between slab and host; 0: unthrottled
  // Bytes of experts read by a token's kernels, over the bytes of its routed experts (masks skip some).
  double computed_share = 1;
};

struct SpeedPlan {
  double tokens_per_second = 0;
  double hit_rate = 0;         // of routed experts, in weightd's memory
  uint64_t read_bytes = 0;     // by kernels, a token
  uint64_t disk_bytes = 0;     // a token
  uint64_t link_bytes = 0;     // a token
  double compute_seconds = 0;  // a token, the next three too
  double disk_seconds = 0;
  double link_seconds = 0;
};

SpeedPlan PlanSpeed(const ModelFacts& facts, const StoredSizes& sizes, const MemoryPlan& memory,
                    const SpeedInput& input);

}  // namespace sluice::cli
