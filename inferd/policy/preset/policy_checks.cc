// CheckPolicies() (preset.h): values that a device lacks, and values that contradict each other.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "inferd/policy/preset/policy_keys.h"
#include "inferd/policy/preset/preset.h"

namespace sluice::inferd {
namespace {

std::string Shown(const Policies& policies, std::string_view name) {
  for (const PolicyKey& key : PolicyKeys()) {
    if (name == key.name) return absl::StrCat("--policy ", key.name, "=", key.show(policies));
  }
  return std::string(name);
}

absl::Status Contradiction(const Policies& policies, const char* key, const char* other) {
  return absl::InvalidArgumentError(
      absl::StrCat(Shown(policies, key), " does not go with ", Shown(policies, other)));
}

// On `host` experts are leased in weightd's DRAM, and weightd evicts them, so no value that governs slots has
// a meaning there.
absl::Status CheckHost(const Policies& p) {
  const struct {
    const char* key;
    bool plain;
  } values[] = {
      {"cache", p.cache == CacheKind::kLease},
      {"cache_allocation", p.allocation == CacheAllocation::kUniform},
      {"cache_eviction", p.eviction == SlotEviction::kLru},
      {"cache_granularity", p.granularity == CacheGranularity::kExpert},
      {"lead_resident", p.lead_resident == LeadResident::kOff},
      {"expert_miss", p.miss == ExpertMiss::kLoad},
      {"neuron_miss", p.neuron_miss == NeuronMiss::kLoad},
      {"balance_resident", !p.balance_resident},
      {"predictor_depth_rule", p.depth_rule != DepthRule::kReach},
      {"neuron_predictor", p.neuron_predictor == NeuronPredictorKind::kNone},
  };
  for (const auto& value : values) {
    if (!value.plain) {
      return absl::InvalidArgumentError(
          absl::StrCat(Shown(p, value.key),
                       " is about a device's slots; on --device host experts are used where they lie"));
    }
  }
  return absl::OkStatus();
}

// A neuron cache finds an expert's neurons by the lead's values, so it needs a lead, slots that experts
// share, and a device that computes.
absl::Status CheckNeurons(const Policies& p) {
  if (p.sparsity.order == SparsityOrder::kNone || p.sparsity.order == SparsityOrder::kProduct) {
    return Contradiction(p, "cache_granularity", "sparsity");
  }
  if (p.cache == CacheKind::kLayer || p.cache == CacheKind::kStatic) {
    return Contradiction(p, "cache_granularity", "cache");
  }
  if (p.miss == ExpertMiss::kCpu || p.miss == ExpertMiss::kBalance) {
    return Contradiction(p, "cache_granularity", "expert_miss");
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(const Policies& p) {
  if (p.token_draft) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(p, "token_draft"), " is about reads from SSD on --device host"));
  }
  if (p.cache == CacheKind::kLease) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(p, "cache"), " is --device host's; other devices have memory of their own"));
  }
  const bool by_neuron = p.granularity == CacheGranularity::kNeuron;
  if (by_neuron) {
    RETURN_IF_ERROR(CheckNeurons(p));
  }
  // If everything is resident there is nothing to fetch, but predictions may still be made for counting.
  if (!by_neuron && p.cache != CacheKind::kResident && p.neuron_predictor != NeuronPredictorKind::kNone) {
    return Contradiction(p, "neuron_predictor", "cache_granularity");
  }
  if (!by_neuron && p.neuron_miss != NeuronMiss::kLoad) {
    return Contradiction(p, "neuron_miss", "cache_granularity");
  }
  if (by_neuron && p.depth_rule == DepthRule::kReach) {
    return Contradiction(p, "predictor_depth_rule", "cache_granularity");
  }
  if (!by_neuron && p.lead_resident == LeadResident::kOn) {
    return Contradiction(p, "lead_resident", "cache_granularity");
  }
  const bool names_experts =
      p.predictor != ExpertPredictorKind::kNone && p.predictor != ExpertPredictorKind::kLookahead;
  if (p.neuron_predictor != NeuronPredictorKind::kNone && !names_experts) {
    return Contradiction(p, "neuron_predictor", "expert_predictor");
  }
  if (p.neuron_predictor == NeuronPredictorKind::kUpReuse && p.sparsity.order != SparsityOrder::kUp) {
    return Contradiction(p, "neuron_predictor", "sparsity");
  }
  if (p.neuron_predictor == NeuronPredictorKind::kGateReuse && p.sparsity.order != SparsityOrder::kGate) {
    return Contradiction(p, "neuron_predictor", "sparsity");
  }
  return absl::OkStatus();
}

absl::Status CheckPredictor(const Policies& p) {
  if (p.miss == ExpertMiss::kProceed && p.predictor == ExpertPredictorKind::kNone) {
    return Contradiction(p, "expert_miss", "expert_predictor");
  }
  const bool one_ahead =
      p.predictor == ExpertPredictorKind::kLearned ||
      (p.predictor == ExpertPredictorKind::kLookahead && p.depth_rule != DepthRule::kReach);
  if (p.token_draft && p.first_layer) {
    return Contradiction(p, "token_draft", "first_layer");
  }
  if (p.predictor_depth > 1 && one_ahead) {
    return Contradiction(p, "predictor_depth", "expert_predictor");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPolicies(const Policies& policies, DeviceKind device) {
  RETURN_IF_ERROR(device == DeviceKind::kHost ? CheckHost(policies) : CheckSlots(policies));
  return CheckPredictor(policies);
}

}  // namespace sluice::inferd
