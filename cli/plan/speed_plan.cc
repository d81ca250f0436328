#include "cli/plan/speed_plan.h"

#include <algorithm>

#include "cli/plan/hit_rate.h"

namespace sluice::cli {
namespace {

// Share of the shorter of a layer's computing and reading that is not hidden behind the longer: an expert is
// known to be missing once its layer's router has run (lab/docs/measured.md: 1.02 to 1.10 of the longer one's
// time).
constexpr double kNotHidden = 0.1;

// Whole experts, one of which is on its way.
double ShareHeld(uint64_t room, const StoredSizes& sizes) {
  if (room >= sizes.experts()) return 1;
  const uint64_t experts = room / std::max<uint64_t>(1, sizes.weights.largest_expert);
  if (experts == 0) return 0;
  return static_cast<double>((experts - 1) * sizes.weights.largest_expert) /
         static_cast<double>(sizes.experts());
}

}  // namespace

SpeedPlan PlanSpeed(const ModelFacts& facts, const StoredSizes& sizes, const MemoryPlan& memory,
                    const SpeedInput& input) {
  SpeedPlan plan;
  const double routed = static_cast<double>(sizes.routed_read);
  const uint64_t room = memory.dram_budget - std::min(memory.dram_budget, sizes.weights.dense);
  plan.hit_rate = HitRate(facts.config, facts.usage, ShareHeld(room, sizes));
  double missed = routed * (1 - plan.hit_rate);
  if (memory.slab > 0) {
    const double at_hand = HitRate(facts.config, facts.usage, ShareHeld(memory.slab, sizes));
    plan.link_bytes = static_cast<uint64_t>(routed * (1 - at_hand));
    // Experts in the slab are never requested.
    missed = std::min(missed, static_cast<double>(plan.link_bytes));
    if (input.link > 0) plan.link_seconds = static_cast<double>(plan.link_bytes) / input.link;
  }
  plan.disk_bytes = static_cast<uint64_t>(missed);
  plan.disk_seconds = plan.disk_bytes > 0 && input.disk > 0 ? missed / input.disk : 0;
  const double computed = routed * input.computed_share;
  plan.read_bytes = sizes.dense_read + static_cast<uint64_t>(computed);
  plan.compute_seconds = static_cast<double>(sizes.dense_read) / input.kernels.dense +
                         computed / input.kernels.experts +
                         static_cast<double>(facts.config.layers.size()) * input.kernels.layer_seconds;
  const double transfer = std::max(plan.disk_seconds, plan.link_seconds);
  // While the head is computed nothing travels: what the next token needs is not known.
  const double head = static_cast<double>(sizes.head_read) / input.kernels.dense;
  const double layers = plan.compute_seconds - head;
  const double seconds = head + std::max(layers, transfer) + kNotHidden * std::min(layers, transfer);
  plan.tokens_per_second = seconds > 0 ? 1 / seconds : 0;
  return plan;
}

}  // namespace sluice::cli
