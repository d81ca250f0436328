#include "inferd/policy/sparsity/sparsity.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/profile/threshold_tables.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

Lead LeadOf(SparsityOrder order) {
  return order == SparsityOrder::kUp     ? Lead::kUp
         : order == SparsityOrder::kGate ? Lead::kGate
                                         : Lead::kProduct;
}

// Target of the routed experts of a layer such that the layer with its dense shared expert leaves out
// `target` (intra-expert sparsity).
absl::StatusOr<double> RoutedTarget(uint32_t layer, const MoeConfig& moe, double target) {
  const double routed = static_cast<double>(moe.top_k) * moe.expert_width;
  const double share = (routed + moe.shared_width) / routed * target;
  if (share > 1) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": --sparsity-target ", target, " of ",
                                                   moe.top_k, " experts of ", moe.expert_width,
                                                   " neurons and a dense shared expert of ", moe.shared_width,
                                                   " would leave out ", share, " of the routed neurons"));
  }
  return share;
}

absl::Status CheckResolved(const ThresholdTables& tables, uint32_t layer, double target,
                           const std::string& profile_dir) {
  if (tables.Resolves(target)) return absl::OkStatus();
  const double last = tables.shares()[tables.points() - 2];
  return absl::InvalidArgumentError(absl::StrFormat(
      "layer %d: %.9g of the routed neurons are to be left out, but %s/%s has no entry between %.9g and 1%s",
      layer, target, profile_dir, kThresholdsName, last,
      last < FineShares().end()[-2] ? " (an older one: `sluice calibrate` makes finer tables)" : ""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SparsityPolicy>> SparsityPolicy::Create(const SparsityConfig& config,
                                                                       const ModelConfig& model,
                                                                       const std::string& profile_dir,
                                                                       const std::string& model_id) {
  std::unique_ptr<SparsityPolicy> policy(new SparsityPolicy(config.order, model.layers.size()));
  if (config.order == SparsityOrder::kNone) {
    return policy;
  }
  std::optional<ThresholdTables> tables;
  if (config.target.has_value()) {
    ASSIGN_OR_RETURN(tables, ReadThresholds(profile_dir, model, model_id));
  }
  for (uint32_t layer = 0; layer < model.layers.size(); ++layer) {
    const MoeConfig& moe = model.layers[layer].moe;
    policy->first_.push_back(static_cast<uint32_t>(policy->thresholds_.size()));
    double target = config.target.value_or(0);
    if (config.target.has_value() && config.scope == ThresholdScope::kModel && moe.experts > 0) {
      ASSIGN_OR_RETURN(target, RoutedTarget(layer, moe, target));
    }
    if (tables.has_value() && moe.experts > 0) {
      RETURN_IF_ERROR(CheckResolved(*tables, layer, target, profile_dir));
    }
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      const Lead lead = LeadOf(config.order);
      policy->thresholds_.push_back(!config.target.has_value() ? static_cast<float>(*config.threshold)
                                    : config.scope == ThresholdScope::kModel
                                        ? tables->PooledThreshold(lead, target)
                                        : tables->Threshold(lead, layer, expert, target));
    }
  }
  return policy;
}

std::vector<LayerSparsity> SparsityPolicy::counts() const {
  std::vector<LayerSparsity> counts;
  if (!enabled()) {
    return counts;
  }
  for (const AtomicCount& count : counts_) {
    counts.push_back(
        {count.neurons.load(std::memory_order_relaxed), count.kept.load(std::memory_order_relaxed)});
  }
  return counts;
}

}  // namespace sluice::inferd
