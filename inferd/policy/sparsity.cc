#include "inferd/policy/sparsity.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/profile/threshold_tables.h"
#include "kernels/sparse_profile.h"

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

namespace {

// Maximum tokens of one expert that are measured; steps with more use this measurement.
constexpr uint32_t kMaxTokens = 128;

// One spec for each set of encodings that routed experts have.
std::vector<SparseProfileSpec> KindsOf(const Pack& pack, SparsityOrder order, const BackendLimits& limits) {
  std::vector<SparseProfileSpec> kinds;
  const ModelConfig& config = pack.config();
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      SparseProfileSpec spec;
      spec.order = order;
      spec.up = pack.part(layer, expert, Part::kUp).encoding;
      spec.gate = pack.part(layer, expert, Part::kGate).encoding;
      spec.down = pack.part(layer, expert, Part::kDown).encoding;
      spec.activation = {moe.activation, moe.activation_alpha, moe.activation_limit};
      spec.hidden = ExpertHidden(config);
      spec.width = moe.expert_width;
      spec.experts = moe.top_k;
      spec.max_tokens = std::min(limits.max_tokens, kMaxTokens);
      const bool known = std::any_of(kinds.begin(), kinds.end(), [&](const SparseProfileSpec& kind) {
        return kind.up == spec.up && kind.gate == spec.gate && kind.down == spec.down;
      });
      if (!known && kinds.size() < kMaxSparseSwitches) {
        kinds.push_back(spec);
      }
    }
  }
  return kinds;
}

}  // namespace

absl::StatusOr<std::string> SetUpSparseSwitches(const Pack& pack, const SparsityConfig& sparsity,
                                                const BackendLimits& limits, const std::string& folder,
                                                Backend& backend) {
  if (sparsity.order == SparsityOrder::kNone) {
    return std::string();
  }
  std::vector<SparseSwitchEntry> entries;
  std::string line = "masked experts are computed densely from this share kept on, at 1, 2, 4, ... tokens:";
  for (const SparseProfileSpec& spec : KindsOf(pack, sparsity.order, limits)) {
    ASSIGN_OR_RETURN(const SparseProfile profile, LoadOrMeasureSparseSwitch(backend, spec, folder));
    entries.push_back({spec.order, spec.up, spec.gate, spec.down, profile.found});
    for (const float share : profile.found.dense_above) {
      absl::StrAppend(&line, " ", share);
    }
    absl::StrAppend(&line, profile.measured ? " (measured now)" : " (measured before)");
    if (!profile.stored.ok()) {
      absl::StrAppend(&line, "; not kept: ", profile.stored.message());
    }
  }
  RETURN_IF_ERROR(backend.SetSparseSwitches(entries));
  return line;
}

}  // namespace sluice::inferd
