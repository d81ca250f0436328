#include "inferd/engine/make_residency.h"

#include <utility>

#include "common/status.h"
#include "inferd/engine/slab_policies.h"
#include "inferd/model/model_shapes.h"
#include "inferd/residency/host/host_residency.h"
#include "inferd/residency/neuron/neuron_residency.h"
#include "inferd/residency/slab/slab_residency.h"
#include "inferd/sim/virtual_device.h"

namespace sluice::inferd {
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
  slab.balance_resident = policies.balance_resident;
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
