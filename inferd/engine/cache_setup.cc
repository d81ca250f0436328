#include "inferd/engine/cache_setup.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/profile/profile.h"
#include "inferd/cache/host_residency.h"
#include "inferd/cache/neuron_residency.h"
#include "inferd/cache/slab_residency.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/cache_allocation.h"
#include "inferd/policy/routing.h"
#include "inferd/sim/virtual_device.h"

namespace sluice::inferd {
namespace {

Part LeadOf(const Policies& policies) {
  return policies.sparsity.order == SparsityOrder::kUp ? Part::kUp : Part::kGate;
}

// True if parts of the next layer's experts are fetched while a layer is computed: the leads of predicted
// experts, unless all leads are resident, and their predicted neurons.
bool FetchesAhead(const Policies& policies, bool leads_stay) {
  return policies.predictor != ExpertPredictorKind::kNone &&
         (policies.neuron_predictor != NeuronPredictorKind::kNone || !leads_stay);
}

std::vector<uint32_t> KeepNothing(absl::Span<const uint32_t> experts, uint64_t) {
  return std::vector<uint32_t>(experts.size(), 0);
}

// Allocates slots to the most used experts, whatever their layer.
SlotAllocation ByUsage(const UsageProfile& usage) {
  return [usage](absl::Span<const uint32_t> experts, uint64_t total) {
    std::vector<std::pair<uint64_t, uint32_t>> ranking;  // uses, layer
    for (uint32_t layer = 0; layer < experts.size(); ++layer) {
      std::vector<uint64_t> uses = usage.experts[layer];
      std::sort(uses.begin(), uses.end(), std::greater<>());
      for (uint32_t i = 0; i < experts[layer] && i < uses.size(); ++i) {
        ranking.emplace_back(uses[i], layer);
      }
    }
    std::stable_sort(ranking.begin(), ranking.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<uint32_t> quota(experts.size(), 0);
    for (size_t i = 0; i < std::min<uint64_t>(total, ranking.size()); ++i) {
      quota[ranking[i].second]++;
    }
    return quota;
  };
}

// Allocates by each layer's cost curve. The curve is stretched for a layer with slots of several sizes, whose
// experts are allocated separately.
SlotAllocation ByCurves(std::vector<std::vector<double>> curves) {
  return [curves = std::move(curves)](absl::Span<const uint32_t> experts, uint64_t total) {
    std::vector<std::vector<double>> costs(experts.size());
    for (size_t layer = 0; layer < experts.size(); ++layer) {
      const std::vector<double>& curve = curves[layer];
      for (uint32_t slots = 0; slots <= experts[layer] && experts[layer] > 0; ++slots) {
        costs[layer].push_back(curve[uint64_t{slots} * (curve.size() - 1) / experts[layer]]);
      }
    }
    return AllocateByCost(costs, total);
  };
}

// Allocates by the time that each layer makes the step wait. Without a load time the unit is one load.
SlotAllocation DpTimed(const CacheProfile& profile, const std::vector<LayerDemand>& model,
                       const LayerTimes& times) {
  std::vector<std::vector<double>> waits;
  for (size_t layer = 0; layer < model.size(); ++layer) {
    std::vector<double>& row = waits.emplace_back();
    for (const double misses : profile.layers[layer].MissCurve(profile.tokens)) {
      row.push_back(WaitingCost(model[layer], misses, times));
    }
  }
  return ByCurves(std::move(waits));
}

LayerTimes LayerTimesOf(const DeviceTimes& times, const Pack& pack) {
  const double bytes = static_cast<double>(pack.largest_expert_bytes());
  if (!(times.load_per_byte > 0)) {
    return {1, 0, 0};
  }
  const double compute = times.compute_per_byte * bytes;
  return {times.load_per_byte * bytes, compute, times.attention + LargestTopK(pack.config()) * compute};
}

// Allocates by the gating's a, the gate's b and the misses that the profile counted; without a profile all
// layers count as alike.
absl::StatusOr<SlotAllocation> AllocationByProfile(const Policies& policies, const Pack& pack,
                                                   const DeviceTimes& times) {
  const std::string& source = pack.manifest().provenance.source_digest;
  const std::string folder = ProfileFolder(pack.dir());
  const absl::StatusOr<CacheProfile> profile = ReadCacheProfile(folder, pack.config(), source);
  if (absl::IsNotFound(profile.status())) {
    return AllocateUniform;
  }
  RETURN_IF_ERROR(profile.status());
  std::optional<GatingRule> gating;
  if (policies.routing == RoutingKind::kSensitivity) {
    ASSIGN_OR_RETURN(gating, ResolveGating(policies.sensitivity, pack.config(), folder, source));
  }
  const std::vector<LayerDemand> demands =
      LayerDemandsOf(pack.config(), policies, *profile, gating.has_value() ? &*gating : nullptr);
  return DpTimed(*profile, demands, LayerTimesOf(times, pack));
}

// Extends an allocation by a profile, which knows the model's own layers alone: the last `mtp_layers` get
// their even share.
SlotAllocation WithMtpLayers(SlotAllocation allocate, uint32_t mtp_layers) {
  if (mtp_layers == 0) {
    return allocate;
  }
  return [allocate = std::move(allocate), mtp_layers](absl::Span<const uint32_t> experts, uint64_t total) {
    const uint64_t all = std::accumulate(experts.begin(), experts.end(), uint64_t{0});
    const auto own = experts.first(experts.size() - mtp_layers);
    std::vector<uint32_t> quotas;
    for (const uint32_t count : experts.subspan(own.size())) {
      quotas.push_back(static_cast<uint32_t>(all == 0 ? 0 : std::min<uint64_t>(count, total * count / all)));
    }
    const uint64_t theirs = std::accumulate(quotas.begin(), quotas.end(), uint64_t{0});
    std::vector<uint32_t> result = allocate(own, total - theirs);
    result.insert(result.end(), quotas.begin(), quotas.end());
    return result;
  };
}

absl::StatusOr<SlotAllocation> AllocationOf(const Policies& policies, const Pack& pack,
                                            const UsageProfile* usage, const DeviceTimes& times) {
  if (policies.cache == CacheKind::kNone || policies.cache == CacheKind::kLayer) {
    return KeepNothing;
  }
  if (policies.cache == CacheKind::kStatic && usage != nullptr) {
    return WithMtpLayers(ByUsage(*usage), pack.config().mtp_layers);
  }
  switch (policies.allocation) {
    case CacheAllocation::kLayers:
      return AllocateLayers;
    case CacheAllocation::kDpTimed: {
      ASSIGN_OR_RETURN(SlotAllocation allocate, AllocationByProfile(policies, pack, times));
      return WithMtpLayers(std::move(allocate), pack.config().mtp_layers);
    }
    case CacheAllocation::kUniform:
      break;
  }
  return AllocateUniform;
}

}  // namespace

std::vector<LayerDemand> LayerDemandsOf(const ModelConfig& config, const Policies& policies,
                                        const CacheProfile& profile, const GatingRule* gating) {
  std::vector<LayerDemand> demands;
  for (uint32_t layer = 0; layer < ModelLayers(config); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    LayerDemand& demand = demands.emplace_back(LayerDemand{moe.experts, moe.top_k, 0, 0});
    if (moe.experts == 0) continue;
    if (gating != nullptr && moe.top_k > 1) {
      const double sensitivity = gating->sensitivities[layer];
      const double limit =
          sensitivity > 0 ? gating->threshold / sensitivity : (gating->threshold >= 0 ? 1.0 : -1.0);
      demand.single_share = profile.layers[layer].SingleExpertShare(limit);
    }
    if (policies.predictor == ExpertPredictorKind::kGateReuse) {
      demand.prefetch_accuracy = profile.layers[layer].accuracy[0];
    }
  }
  return demands;
}

absl::StatusOr<SlabResidencyOptions> SlabOptionsOf(const Policies& policies, const Pack& pack,
                                                   const DeviceTimes& times) {
  SlabResidencyOptions options;
  const absl::StatusOr<UsageProfile> usage =
      ReadUsage(ProfileFolder(pack.dir()), pack.config(), pack.manifest().provenance.source_digest);
  for (uint32_t layer = 0; usage.ok() && layer < pack.config().layers.size(); ++layer) {
    // No profile knows the use of MTP layers.
    std::vector<uint32_t> order(pack.expert_count(layer));
    std::iota(order.begin(), order.end(), 0);
    options.fill_order.push_back(IsMtpLayer(pack.config(), layer) ? std::move(order) : usage->Ranked(layer));
  }
  ASSIGN_OR_RETURN(options.allocate, AllocationOf(policies, pack, usage.ok() ? &*usage : nullptr, times));
  options.whole_layers = policies.cache == CacheKind::kLayer;
  options.fixed = policies.cache == CacheKind::kStatic;
  options.cancel_begun = CancelsBegunPrefetches(policies);
  // Replaced experts do not reach the cache.
  options.miss = policies.miss == ExpertMiss::kProceed ? ExpertMiss::kLoad : policies.miss;
  options.lead = LeadOf(policies);
  options.eviction = {.kind = policies.eviction};
  return options;
}

std::string AllocationWarning(const Policies& policies, const Pack& pack) {
  const bool shares = policies.cache == CacheKind::kSlots && policies.allocation == CacheAllocation::kDpTimed;
  const std::string folder = ProfileFolder(pack.dir());
  const absl::StatusOr<CacheProfile> profile =
      shares ? ReadCacheProfile(folder, pack.config(), pack.manifest().provenance.source_digest)
             : absl::StatusOr<CacheProfile>(CacheProfile());
  if (!absl::IsNotFound(profile.status())) {
    return "";
  }
  return absl::StrCat("cache_allocation: ", folder, " has no ", kCacheName,
                      ", so all layers count as alike; sluice calibrate makes it");
}

bool LeadsStay(const Policies& policies, const Pack& pack, uint64_t budget) {
  if (policies.lead_resident != LeadResident::kAuto) {
    return policies.lead_resident == LeadResident::kOn;
  }
  const absl::StatusOr<SlabPlan> plan = PlanNeuronSlab(pack, budget, LeadOf(policies), /*lead_resident=*/true,
                                                       /*fetch_ahead=*/true, KeepNothing);
  return budget > 0 && plan.ok() && plan->slots >= LargestTopKOf(pack);
}

absl::Status CheckSlotBudget(const Policies& policies, const Pack& pack, uint64_t budget) {
  const uint64_t bytes = policies.cache == CacheKind::kResident ? 0 : budget;
  if (policies.granularity == CacheGranularity::kExpert) {
    return CheckDeviceBudget(pack, bytes);
  }
  return CheckNeuronBudget(pack, bytes, LeadOf(policies), LeadsStay(policies, pack, bytes));
}

NeuronResidencyOptions NeuronOptionsOf(const Policies& policies, const Pack& pack,
                                       const SlotCacheOptions& slots) {
  NeuronResidencyOptions options;
  options.slots = slots;
  options.lead_resident = LeadsStay(policies, pack, slots.budget);
  options.fetch_ahead = FetchesAhead(policies, options.lead_resident);
  options.miss = policies.neuron_miss;
  options.budget_us = policies.neuron_budget_us;
  return options;
}

namespace {

double BytesOf(const DenseExpert& expert) {
  double bytes = 0;
  for (const WeightView* view : {&expert.up, &expert.gate, &expert.down}) {
    bytes += static_cast<double>(view->rows) * static_cast<double>(view->stride);
  }
  return bytes;
}

// Returns the times of the modelled device and link; zeros in real time.
DeviceTimes ModelledTimes(const EngineOptions& options, const ModelConfig& config) {
  if (!options.virtual_clock) {
    return {};
  }
  const double gbps = LinkGbps(options, config);
  return {gbps > 0 ? 1 / (gbps * 1e9) : 0,
          options.costs.compute_ms * 1e-3 / static_cast<double>(Bf16ExpertBytes(config)),
          options.costs.attention_ms * 1e-3};
}

absl::StatusOr<SlabResidencyOptions> OptionsOf(const ResidencyParts& parts) {
  const EngineOptions& options = parts.plan->options;
  const Policies& policies = *parts.policies;
  const Pack& pack = parts.client->pack();
  const DeviceTimes times = ModelledTimes(options, pack.config());
  ASSIGN_OR_RETURN(SlabResidencyOptions slab, SlabOptionsOf(policies, pack, times));
  slab.budget = policies.cache == CacheKind::kResident ? 0 : options.slab.budget;
  slab.link_gbps = LinkGbps(options, pack.config());
  slab.link_latency_us = options.slab.link_latency_us;
  slab.tile_neurons = options.slab.tile_neurons;
  slab.stall_limit = options.stall_limit;
  slab.watch = !options.virtual_clock;
  slab.max_rows = parts.plan->forward.max_tokens;
  if (slab.link_gbps > 0) {
    slab.load_seconds = 1 / (slab.link_gbps * 1e9);
  }
  if (options.virtual_clock) {
    slab.cpu_seconds = VirtualCpuSeconds(options.costs, options.slab.link_gbps, pack.config(), 1);
    slab.device_seconds = times.compute_per_byte;
  }
  for (const LayerWeights& layer : parts.weights->layers()) {
    slab.shared_bytes.push_back(BytesOf(layer.common) + BytesOf(layer.beside));
  }
  return slab;
}

}  // namespace

double LinkGbps(const EngineOptions& options, const ModelConfig& config) {
  if (options.device == DeviceKind::kHost) {
    return 0;
  }
  return options.virtual_clock ? VirtualLinkGbps(options.costs, options.slab.link_gbps, config)
                               : options.slab.link_gbps;
}

absl::StatusOr<std::unique_ptr<Residency>> MakeResidency(const ResidencyParts& parts) {
  const EngineOptions& options = parts.plan->options;
  if (options.device == DeviceKind::kHost) {
    HostResidencyOptions host;
    host.stall_limit = options.stall_limit;
    return std::make_unique<HostResidency>(host, parts.client, parts.fetches, parts.segments,
                                           &parts.device->queue());
  }
  ASSIGN_OR_RETURN(const SlabResidencyOptions slab, OptionsOf(parts));
  if (parts.policies->granularity == CacheGranularity::kNeuron) {
    return NeuronResidency::Create(NeuronOptionsOf(*parts.policies, parts.client->pack(), slab), parts.client,
                                   parts.fetches, parts.device);
  }
  return SlabResidency::Create(slab, parts.client, parts.fetches, parts.segments, parts.device, parts.cpu,
                               parts.clock);
}

}  // namespace sluice::inferd
