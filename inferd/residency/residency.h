// Interface of an expert cache: where a layer's experts are, and how they are computed. Its users see the
// parts that they need (inferd/experts); the engine controls the rest. On `host` experts are leased in
// weightd's DRAM (host_residency.h); on devices with memory of their own they lie in slots of a slab.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include "absl/status/status.h"
#include "inferd/experts/expert_prefetch.h"
#include "inferd/experts/expert_source.h"
#include "inferd/experts/residency_statistics.h"

namespace sluice::inferd {

class Residency : public ExpertSource, public ExpertPrefetch, public ResidencyStatistics {
 public:
  // The client has a session, at the start or after a Reconnect(): registers memory, and starts the first
  // fill. UNAVAILABLE: weightd is gone again.
  virtual absl::Status Attach() { return absl::OkStatus(); }

  // `prefill`: the following steps hold prompt rows, which pass through without evicting experts that
  // decoding uses.
  virtual void SetPrefill(bool /*prefill*/) {}

  // `exact`: the following steps hold rows with exact results, as a prompt's: no neuron is left out,
  // whatever the policy.
  virtual void RequireExact(bool /*exact*/) {}

  // `cpu`: false keeps experts off the CPU, for readers on the device alone; true at the start.
  virtual void AllowCpu(bool /*cpu*/) {}

  // Handles completions that have arrived. Called between steps.
  virtual void Poll() = 0;

  // Releases everything after an error in a step. The next step starts afresh.
  virtual void Abandon() = 0;
};

}  // namespace sluice::inferd
