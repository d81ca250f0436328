#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/renamed_names.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {
namespace {

template <typename E>
struct Word {
  E value;
  const char* word;
};

constexpr Word<SparsityOrder> kOrders[] = {{SparsityOrder::kNone, "none"},
                                           {SparsityOrder::kUp, "up"},
                                           {SparsityOrder::kGate, "gate"},
                                           {SparsityOrder::kProduct, "product"}};
constexpr Word<ThresholdScope> kScopes[] = {{ThresholdScope::kExpert, "expert"},
                                            {ThresholdScope::kModel, "model"}};
constexpr Word<RoutingKind> kRoutings[] = {{RoutingKind::kTopK, "topk"},
                                           {RoutingKind::kSensitivity, "sensitivity"},
                                           {RoutingKind::kCacheAware, "cache_aware"}};
constexpr Word<ExpertPredictorKind> kPredictors[] = {{ExpertPredictorKind::kNone, "none"},
                                                     {ExpertPredictorKind::kGateReuse, "gate_reuse"},
                                                     {ExpertPredictorKind::kLearned, "learned"},
                                                     {ExpertPredictorKind::kLookahead, "lookahead"}};
constexpr Word<NeuronPredictorKind> kNeuronPredictors[] = {{NeuronPredictorKind::kNone, "none"},
                                                           {NeuronPredictorKind::kUpReuse, "up_reuse"},
                                                           {NeuronPredictorKind::kGateReuse, "gate_reuse"}};
constexpr Word<CacheKind> kCaches[] = {{CacheKind::kLease, "lease"},   {CacheKind::kSlots, "slots"},
                                       {CacheKind::kNone, "none"},     {CacheKind::kLayer, "layer"},
                                       {CacheKind::kStatic, "static"}, {CacheKind::kResident, "resident"}};
constexpr Word<CacheAllocation> kAllocations[] = {{CacheAllocation::kUniform, "uniform"},
                                                  {CacheAllocation::kDpTimed, "dp_timed"},
                                                  {CacheAllocation::kLayers, "layers"}};
constexpr Word<SlotEviction> kEvictions[] = {
    {SlotEviction::kLru, "lru"}, {SlotEviction::kLfru, "lfru"}, {SlotEviction::kScore, "score"}};
constexpr Word<CacheGranularity> kGranularities[] = {{CacheGranularity::kExpert, "expert"},
                                                     {CacheGranularity::kNeuron, "neuron"}};
constexpr Word<LeadResident> kLeadResidents[] = {
    {LeadResident::kOff, "off"}, {LeadResident::kOn, "on"}, {LeadResident::kAuto, "auto"}};
constexpr Word<ExpertMiss> kMisses[] = {{ExpertMiss::kLoad, "load"},
                                        {ExpertMiss::kCpu, "cpu"},
                                        {ExpertMiss::kBalance, "balance"},
                                        {ExpertMiss::kProceed, "proceed"}};
constexpr Word<NeuronMiss> kNeuronMisses[] = {
    {NeuronMiss::kLoad, "load"}, {NeuronMiss::kBudgeted, "budgeted"}, {NeuronMiss::kProceed, "proceed"}};

template <typename E, size_t N>
std::string ShowWord(const Word<E> (&words)[N], E value) {
  for (const Word<E>& word : words) {
    if (word.value == value) return word.word;
  }
  return "";
}

template <typename E, size_t N>
bool SetWord(const Word<E> (&words)[N], std::string_view text, E* value) {
  for (const Word<E>& word : words) {
    if (text == word.word) {
      *value = word.value;
      return true;
    }
  }
  return false;
}

template <auto Member, const auto& Words>
constexpr PolicyKey WordKey(const char* name, const char* values) {
  return {name, values, [](const Policies& p) { return ShowWord(Words, p.*Member); },
          [](std::string_view text, Policies* p) { return SetWord(Words, text, &(p->*Member)); }};
}

bool ParseReal(std::string_view text, double least, double most, double* value) {
  return absl::SimpleAtod(absl::string_view(text.data(), text.size()), value) && *value >= least &&
         *value <= most;
}

// A key of whole numbers from Least to Most.
template <auto Member, uint32_t Least, uint32_t Most>
constexpr PolicyKey CountKey(const char* name, const char* values) {
  return {name, values, [](const Policies& p) { return absl::StrCat(p.*Member); },
          [](std::string_view text, Policies* p) {
            uint32_t value = 0;
            const bool fits = absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &value) &&
                              value >= Least && value <= Most;
            if (fits) p->*Member = value;
            return fits;
          }};
}

// A key of numbers from 0 to Most.
template <auto Member, uint32_t Most>
constexpr PolicyKey RealKey(const char* name, const char* values) {
  return {name, values, [](const Policies& p) { return absl::StrCat(p.*Member); },
          [](std::string_view text, Policies* p) {
            double value = 0;
            const bool fits = ParseReal(text, 0, Most, &value);
            if (fits) p->*Member = value;
            return fits;
          }};
}

template <auto Member>
constexpr PolicyKey SwitchKey(const char* name) {
  return {name, "on, off", [](const Policies& p) { return std::string(p.*Member ? "on" : "off"); },
          [](std::string_view text, Policies* p) {
            if (text != "on" && text != "off") return false;
            p->*Member = text == "on";
            return true;
          }};
}

std::string ShowOptional(const std::optional<double>& value) {
  return value.has_value() ? absl::StrCat(*value) : "unset";
}

// A key for one of several mutually exclusive values: setting one unsets the others.
template <auto Member, uint32_t Most>
constexpr PolicyKey SensitivityKey(const char* name, const char* values) {
  return {name, values, [](const Policies& p) { return ShowOptional(p.sensitivity.*Member); },
          [](std::string_view text, Policies* p) {
            double value = 0;
            if (!ParseReal(text, 0, Most, &value)) return false;
            p->sensitivity = {};
            p->sensitivity.*Member = value;
            return true;
          }};
}

bool SetOrder(std::string_view text, Policies* p) {
  SparsityOrder order{};
  if (!SetWord(kOrders, text, &order)) return false;
  // A target or threshold of another lead is not valid for this one.
  if (order != p->sparsity.order) p->sparsity = {order, {}, ThresholdScope::kExpert, {}};
  return true;
}

template <bool IsTarget>
bool SetSparsityNumber(std::string_view text, Policies* p) {
  double value = 0;
  if (!ParseReal(text, 0, IsTarget ? 0.9999 : 1e9, &value)) return false;
  p->sparsity.target = IsTarget ? std::optional<double>(value) : std::nullopt;
  p->sparsity.threshold = IsTarget ? std::nullopt : std::optional<double>(value);
  return true;
}

constexpr PolicyKey kKeys[] = {
    {"sparsity", "none, up, gate, product",
     [](const Policies& p) { return ShowWord(kOrders, p.sparsity.order); }, SetOrder},
    {"sparsity_target", "0 to below 1", [](const Policies& p) { return ShowOptional(p.sparsity.target); },
     SetSparsityNumber<true>},
    {"sparsity_threshold", "0 or more", [](const Policies& p) { return ShowOptional(p.sparsity.threshold); },
     SetSparsityNumber<false>},
    {"sparsity_scope", "expert, model", [](const Policies& p) { return ShowWord(kScopes, p.sparsity.scope); },
     [](std::string_view text, Policies* p) { return SetWord(kScopes, text, &p->sparsity.scope); }},
    WordKey<&Policies::routing, kRoutings>("routing", "topk, sensitivity, cache_aware"),
    SensitivityKey<&SensitivityConfig::share, 1>("sensitivity_share", "0 to 1"),
    SensitivityKey<&SensitivityConfig::score, 1>("score_threshold", "0 to 1"),
    RealKey<&Policies::cache_alpha, 1>("cache_alpha", "0 to 1"),
    WordKey<&Policies::predictor, kPredictors>("expert_predictor", "none, gate_reuse, learned, lookahead"),
    CountKey<&Policies::predictor_depth, 1, 3>("predictor_depth", "1 to 3"),
    RealKey<&Policies::predictor_confidence, 1>("predictor_confidence", "0 to 1"),
    RealKey<&Policies::predictor_recall, 1>("predictor_recall", "0 to 1"),
    SwitchKey<&Policies::first_layer>("first_layer"),
    SwitchKey<&Policies::token_draft>("token_draft"),
    CountKey<&Policies::max_prefetch, 0, 65536>("max_prefetch", "0 to 65536"),
    WordKey<&Policies::neuron_predictor, kNeuronPredictors>("neuron_predictor", "none, up_reuse, gate_reuse"),
    WordKey<&Policies::cache, kCaches>("cache", "lease, slots, none, layer, static, resident"),
    WordKey<&Policies::allocation, kAllocations>("cache_allocation", "uniform, dp_timed, layers"),
    WordKey<&Policies::eviction, kEvictions>("cache_eviction", "lru, lfru, score"),
    WordKey<&Policies::granularity, kGranularities>("cache_granularity", "expert, neuron"),
    WordKey<&Policies::lead_resident, kLeadResidents>("lead_resident", "off, on, auto"),
    WordKey<&Policies::miss, kMisses>("expert_miss", "load, cpu, balance, proceed"),
    WordKey<&Policies::neuron_miss, kNeuronMisses>("neuron_miss", "load, budgeted, proceed"),
    RealKey<&Policies::neuron_budget_us, 1000000000>("neuron_budget_us", "0 or more"),
    RealKey<&Policies::quality_bound, 10>("quality_bound", "0 to 10"),
};

}  // namespace

absl::Span<const PolicyKey> PolicyKeys() { return kKeys; }

absl::Status SetPolicy(std::string_view assignment, Policies* policies) {
  const size_t equals = assignment.find('=');
  const std::string name(PresentName(kRenamedPolicyKeys, assignment.substr(0, equals)));
  for (const PolicyKey& key : kKeys) {
    if (name != key.name) continue;
    const std::string value(equals == std::string_view::npos ? "" : assignment.substr(equals + 1));
    if (key.set(value, policies)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--policy ", name, " is \"", value, "\", must be ", key.values));
  }
  for (const RemovedName& removed : kRemovedPolicyKeys) {
    if (name == removed.name) {
      return absl::InvalidArgumentError(
          absl::StrCat("--policy ", name, " was removed in ", removed.version, ": ", removed.instead));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--policy has no key \"", name,
                   "\"; it has: ", absl::StrJoin(kKeys, ", ", [](std::string* out, const PolicyKey& key) {
                     absl::StrAppend(out, key.name);
                   })));
}

}  // namespace sluice::inferd
