#include "cli/plan/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/size.h"
#include "common/status.h"
#include "weightd/dram/memory_budget.h"

namespace sluice::cli {

absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const StoredSizes& sizes,
                                      const MemoryRequest& request) {
  MemoryPlan plan;
  plan.dram_budget = request.dram_budget.value_or(
      weightd::DefaultDramBudget(sizes.weights, request.threads, request.memory));
  plan.whole = plan.dram_budget >= sizes.weights.all;
  inferd::EngineOptions options = request.engine;
  if (options.max_prefill_chunk == 0) {
    options.max_prefill_chunk = inferd::GrowingChunk(options, plan.whole);
  }
  ASSIGN_OR_RETURN(const inferd::EnginePlan engine, inferd::PlanEngine(options, config));
  plan.kv = engine.kv_bytes;
  plan.activations = engine.activation_bytes;
  plan.context = engine.options.context;
  plan.processes = weightd::kProcessReserve;
  if (request.engine.device == inferd::DeviceKind::kSim) {
    plan.device_dense = sizes.weights.dense;
    const uint64_t beside = plan.device_dense + plan.kv + plan.activations;
    plan.slab = request.device_budget == 0 ? sizes.experts()
                                           : request.device_budget - std::min(request.device_budget, beside);
    if (plan.slab == 0) {
      plan.refusal = absl::StrCat("a device budget of ", FormatSize(request.device_budget),
                                  " leaves nothing for experts beside ", FormatSize(beside),
                                  " of dense weights, KV cache and activations");
    }
  }
  plan.least_budget = weightd::MinDramBudget(sizes.weights, request.threads);
  if (!plan.refusal.empty()) {
    return plan;
  }
  if (plan.dram_budget < plan.least_budget) {
    plan.refusal =
        absl::StrCat("weights need at least ", FormatSize(plan.least_budget), " in memory (",
                     FormatSize(sizes.weights.dense), " dense, and two experts a thread), they have ",
                     FormatSize(plan.dram_budget));
  } else if (plan.total() > request.memory) {
    plan.refusal = absl::StrCat(
        "takes ", FormatSize(plan.total()), " (weights ", FormatSize(plan.dram_budget), ", KV cache ",
        FormatSize(plan.kv), ", activations ", FormatSize(plan.activations),
        plan.slab > 0 ? absl::StrCat(", device ", FormatSize(plan.slab + plan.device_dense)) : "", "), ",
        FormatSize(request.memory), " are there; a smaller --context or --parallel helps");
  }
  return plan;
}

}  // namespace sluice::cli
