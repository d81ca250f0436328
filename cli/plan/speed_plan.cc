#include "cli/plan/speed_plan.h"

#include <algorithm>

#include "cli/plan/hit_rate.h"

namespace sluice::cli {
namespace {

// Of the shorter of computing and reading, what does not hide behind the other: an expert is known to be
// missing once its layer's router has run (docs/measured.md: 1.02 to 1.10 of the longer one's time).
constexpr double kNotHidden = 0.1;

// Segments are of one size class each, and the last of a class is seldom full.
constexpr double kFilled = 0.97;

double ShareHeld(uint64_t room, const StoredSizes& sizes) {
  if (room >= sizes.experts()) return 1;
  return kFilled * static_cast<double>(room) / static_cast<double>(sizes.experts());
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
    // What the slab has is asked of nobody.
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
  const double seconds =
      std::max(plan.compute_seconds, transfer) + kNotHidden * std::min(plan.compute_seconds, transfer);
  plan.tokens_per_second = seconds > 0 ? 1 / seconds : 0;
  return plan;
}

}  // namespace sluice::cli
