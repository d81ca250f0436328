#include "inferd/policy/policies.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

constexpr char kExact[] =
    "for one build, machine, device and instruction set a sequence's logits depend on its token ids alone";

struct Preset {
  const char* name;
  const char* summary;
  const char* bits;
  Policies policies;    // on a device with slots
  bool on_host = true;  // true if any of it has an effect with experts leased in place
};

Policies Base() {
  Policies p;
  p.cache = CacheKind::kSlots;
  return p;
}

Policies Floe(double target) {
  Policies p = Base();
  p.sparsity = {SparsityOrder::kUp, target, ThresholdScope::kExpert, {}};
  p.predictor = ExpertPredictorKind::kLearned;
  p.predictor_confidence = 0.6;
  p.neuron_predictor = NeuronPredictorKind::kUpReuse;
  p.allocation = CacheAllocation::kLayers;
  p.granularity = CacheGranularity::kNeuron;
  p.lead_resident = LeadResident::kAuto;
  p.neuron_miss = NeuronMiss::kProceed;
  return p;
}

Policies Corm() {
  Policies p = Base();
  p.sparsity = {SparsityOrder::kGate, {}, ThresholdScope::kExpert, 0.25};
  p.predictor_recall = 0.8;  // CORM's minimum
  p.neuron_predictor = NeuronPredictorKind::kGateReuse;
  p.granularity = CacheGranularity::kNeuron;
  p.lead_resident = LeadResident::kAuto;
  p.miss = ExpertMiss::kProceed;
  p.neuron_miss = NeuronMiss::kProceed;
  return p;
}

Policies Intra() {
  Policies p = Base();
  p.sparsity = {SparsityOrder::kGate, 0.5, ThresholdScope::kModel, {}};
  p.predictor = ExpertPredictorKind::kNone;
  p.cache = CacheKind::kResident;
  return p;
}

Policies Adapmoe() {
  Policies p = Base();
  p.routing = RoutingKind::kSensitivity;
  p.predictor_depth = 3;
  p.first_layer = true;
  p.allocation = CacheAllocation::kDpTimed;
  return p;
}

Policies Importance() {
  Policies p = Base();
  p.routing = RoutingKind::kCacheAware;
  p.predictor = ExpertPredictorKind::kLookahead;
  p.eviction = SlotEviction::kScore;
  p.miss = ExpertMiss::kBalance;
  p.predictor_depth = 3;
  p.max_prefetch = 1;
  return p;
}

Policies Baseline(CacheKind cache, ExpertMiss miss = ExpertMiss::kLoad) {
  Policies p = Base();
  p.predictor = ExpertPredictorKind::kNone;
  p.cache = cache;
  p.miss = miss;
  return p;
}

std::vector<Preset> Table() {
  constexpr char kPacked[] = "as packed";
  constexpr char kFloeBits[] = "up q2, gate and down as packed (pack --recipe floe)";
  return {
      {"exact", kExact, kPacked, Base()},
      {"floe", "FloE: the up product decides, 80 % of the neurons are left out (pack with --recipe floe)",
       kFloeBits, Floe(0.8)},
      {"floe90", "FloE at 90 %", kFloeBits, Floe(0.9)},
      {"corm", "CORM: the gate decides, |silu(x.g)| >= 0.25 counts (pack with --recipe corm)",
       "q4 or q2 by usage (pack --recipe corm)", Corm()},
      {"intra", "intra-expert sparsity: the gate decides by one threshold for the model, 50 % are left out",
       kPacked, Intra()},
      {"adapmoe",
       "AdapMoE: one expert where the layer bears it, prediction three layers ahead, slots by layer",
       "q4 (pack --bits q4)", Adapmoe()},
      {"importance", "importance-driven: experts at hand instead of those that count little, slots by score",
       kPacked, Importance()},
      {"auto",
       "chosen at start from link, device, memory and profile, within a bound of quality (quality_bound, by "
       "default 0: no token changes)",
       kPacked, Base()},
      {"layerwise", "baseline: whole layers are loaded, used or not (DeepSpeed's way)", kPacked,
       Baseline(CacheKind::kLayer), false},
      {"ondemand", "baseline: every expert is loaded when it is chosen, nothing is kept", kPacked,
       Baseline(CacheKind::kNone), false},
      {"lru_prefetch",
       "baseline: the same slots for each layer, the next layer predicted by its gate "
       "(mixtral-offloading's way)",
       kPacked, Base(), false},
      {"static_hot",
       "baseline: the experts used most stay for good, the CPU computes the others "
       "(Fiddler's way)",
       kPacked, Baseline(CacheKind::kStatic, ExpertMiss::kCpu), false},
      {"resident", "baseline: every expert is in device memory", kPacked, Baseline(CacheKind::kResident)}};
}

// Reduces a preset to experts leased in place: there are no slots to divide and nothing to load in parts, and
// a prediction that needs the profile's networks costs more than it saves.
Policies OnHost(Policies p) {
  const Policies plain;
  if (p.predictor == ExpertPredictorKind::kLookahead) {
    p.predictor_depth = plain.predictor_depth;
  }
  p.predictor = p.predictor == ExpertPredictorKind::kNone ? p.predictor : ExpertPredictorKind::kGateReuse;
  p.predictor_recall = plain.predictor_recall;
  p.first_layer = false;
  p.token_draft = true;
  p.neuron_predictor = plain.neuron_predictor;
  p.cache = CacheKind::kLease;
  p.allocation = plain.allocation;
  p.eviction = plain.eviction;
  p.granularity = plain.granularity;
  p.lead_resident = LeadResident::kOff;
  p.miss = plain.miss;
  p.max_prefetch = plain.max_prefetch;
  p.neuron_miss = plain.neuron_miss;
  return p;
}

absl::StatusOr<SparsityOrder> ParseSparsityOrder(const std::string& word) {
  for (const SparsityOrder order :
       {SparsityOrder::kNone, SparsityOrder::kUp, SparsityOrder::kGate, SparsityOrder::kProduct}) {
    if (word == SparsityWord(order)) {
      return order;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--sparsity is \"", word, "\", must be one of none, up, gate, product"));
}

absl::Status Override(const PolicyOverrides& o, SparsityConfig* sparsity) {
  if (!o.sparsity.empty()) {
    ASSIGN_OR_RETURN(const SparsityOrder order, ParseSparsityOrder(o.sparsity));
    if (order != sparsity->order) {
      *sparsity = {};  // a target or threshold of another lead is invalid for this one
      sparsity->order = order;
    }
  }
  if (!o.sparsity_scope.empty()) {
    if (o.sparsity_scope != "expert" && o.sparsity_scope != "model") {
      return absl::InvalidArgumentError(
          absl::StrCat("--sparsity-scope is \"", o.sparsity_scope, "\", must be expert or model"));
    }
    sparsity->scope = o.sparsity_scope == "model" ? ThresholdScope::kModel : ThresholdScope::kExpert;
  }
  if (o.sparsity_target >= 0 && o.sparsity_threshold >= 0) {
    return absl::InvalidArgumentError("--sparsity-target and --sparsity-threshold exclude each other");
  }
  if (o.sparsity_target >= 0) {
    sparsity->target = o.sparsity_target;
    sparsity->threshold.reset();
  }
  if (o.sparsity_threshold >= 0) {
    sparsity->threshold = o.sparsity_threshold;
    sparsity->target.reset();
  }
  return absl::OkStatus();
}

// Sets assignments in order; one string may hold several, as a=b,c=d.
absl::Status SetPolicies(const std::vector<std::string>& texts, Policies* policies) {
  for (const std::string& text : texts) {
    for (const std::string& assignment : std::vector<std::string>(absl::StrSplit(text, ','))) {
      RETURN_IF_ERROR(SetPolicy(assignment, policies));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const SparsityConfig& sparsity) {
  const bool set = sparsity.target.has_value() || sparsity.threshold.has_value();
  if (sparsity.order == SparsityOrder::kNone) {
    return set ? absl::InvalidArgumentError(
                     "--sparsity-target and --sparsity-threshold need --sparsity up, gate or product")
               : absl::OkStatus();
  }
  if (!set) {
    return absl::InvalidArgumentError(absl::StrCat("--sparsity ", SparsityWord(sparsity.order),
                                                   " needs --sparsity-target or --sparsity-threshold"));
  }
  if (sparsity.target.has_value() && !(*sparsity.target < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sparsity-target is ", *sparsity.target, ", not a share below 1"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* SparsityWord(SparsityOrder order) {
  switch (order) {
    case SparsityOrder::kNone:
      return "none";
    case SparsityOrder::kUp:
      return "up";
    case SparsityOrder::kGate:
      return "gate";
    case SparsityOrder::kProduct:
      return "product";
  }
  return "unknown";
}

std::vector<PresetSummary> Presets() {
  std::vector<PresetSummary> presets;
  for (const Preset& preset : Table()) {
    presets.push_back({preset.name, preset.summary});
  }
  return presets;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : Table()) {
    names.emplace_back(preset.name);
  }
  return names;
}

absl::StatusOr<Policies> PoliciesOf(const std::string& preset, const PolicyOverrides& overrides,
                                    DeviceKind device) {
  ASSIGN_OR_RETURN(Policies policies, UncheckedPolicies(preset, overrides, device));
  RETURN_IF_ERROR(CheckPolicies(policies, device));
  return policies;
}

absl::StatusOr<Policies> WithOverrides(Policies policies, const PolicyOverrides& overrides) {
  RETURN_IF_ERROR(Override(overrides, &policies.sparsity));
  RETURN_IF_ERROR(SetPolicies(overrides.policy, &policies));
  RETURN_IF_ERROR(Check(policies.sparsity));
  return policies;
}

absl::StatusOr<Policies> UncheckedPolicies(const std::string& preset, const PolicyOverrides& overrides,
                                           DeviceKind device) {
  for (const Preset& known : Table()) {
    if (preset != known.name) {
      continue;
    }
    if (device == DeviceKind::kHost && !known.on_host) {
      return absl::InvalidArgumentError(absl::StrCat(
          "preset ", preset, " is about a device's slots; on --device host experts are used where they lie"));
    }
    Policies policies = device == DeviceKind::kHost ? OnHost(known.policies) : known.policies;
    policies.preset = preset;
    return WithOverrides(std::move(policies), overrides);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown preset \"", preset, "\"; this build has: ", absl::StrJoin(PresetNames(), ", ")));
}

absl::StatusOr<DeviceKind> DeviceFromName(const std::string& name) {
  constexpr std::pair<const char*, DeviceKind> kWords[] = {
      {"host", DeviceKind::kHost}, {"sim", DeviceKind::kSim}, {"cuda", DeviceKind::kCuda}};
  for (const auto& [word, kind] : kWords) {
    if (name == word) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("device \"", name, "\" is none of host, sim, cuda"));
}

std::vector<PolicyWord> Describe(const Policies& policies) {
  std::vector<PolicyWord> words = {{"bits", "as packed"}};
  for (const Preset& preset : Table()) {
    if (policies.preset == preset.name) words.front().value = preset.bits;
  }
  for (const PolicyKey& key : PolicyKeys()) {
    words.push_back({key.name, key.show(policies)});
  }
  return words;
}

bool KeepsModelTokens(const Policies& p) {
  return p.sparsity.order == SparsityOrder::kNone && p.routing == RoutingKind::kTopK &&
         p.miss != ExpertMiss::kProceed;
}

bool FetchesInReach(const Policies& p) {
  return p.predictor_depth > 1 &&
         (p.predictor == ExpertPredictorKind::kLookahead || p.miss == ExpertMiss::kBalance);
}

bool CancelsBegunPrefetches(const Policies& p) {
  return p.predictor_depth > 1 || p.predictor != ExpertPredictorKind::kGateReuse ||
         p.miss == ExpertMiss::kBalance;
}

std::vector<PolicyPromise> Promises(const Policies& p) {
  // True if the result depends on residency. The choice between device and CPU depends on it too, but both
  // compute the same on one instruction set.
  const bool by_place = p.routing == RoutingKind::kCacheAware || p.miss == ExpertMiss::kProceed ||
                        p.neuron_miss != NeuronMiss::kLoad;
  std::vector<PolicyPromise> promises;
  for (const char* what :
       {"memory budgets and slab sizes", "transports and prefetching", "faults and crashes of weightd",
        "thread counts", "batch composition", "prefill chunking"}) {
    promises.push_back({what, !by_place});
  }
  return promises;
}

// CheckPolicies() (policies.h): values that a device lacks, and values that contradict each other.

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
  if (by_neuron && FetchesInReach(p)) {
    return Contradiction(p, "predictor_depth", "cache_granularity");
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
  if (p.token_draft && p.first_layer) {
    return Contradiction(p, "token_draft", "first_layer");
  }
  if (p.predictor_depth > 1 && p.predictor == ExpertPredictorKind::kLearned) {
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
