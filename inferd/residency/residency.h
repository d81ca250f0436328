// Where the experts of a layer are, and how they come to be computed: everything that a cache of experts is
// to its users, each of whom takes the part that it needs (inferd/experts), and what the engine tells it. On
// `host` experts are leased in weightd's DRAM (host_residency.h); on devices with memory of their own they
// lie in slots of a slab.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include "absl/status/status.h"
#include "inferd/experts/expert_prefetch.h"
#include "inferd/experts/expert_source.h"
#include "inferd/experts/residency_statistics.h"

namespace sluice {

class Residency : public ExpertSource, public ExpertPrefetch, public ResidencyStatistics {
 public:
  // The client has a session, at the start or after a Reconnect(): offers it what it must know, and fills
  // what can be filled ahead. UNAVAILABLE: weightd is gone again.
  virtual absl::Status Attach() { return absl::OkStatus(); }

  // Whether the steps that follow hold rows of prompts: these pass through without pushing out what decoding
  // uses.
  virtual void SetPrefill(bool /*prefill*/) {}

  // Whether the steps that follow hold rows whose results must be whole, as a prompt's are: no neuron is left
  // out then, whatever the policy.
  virtual void SetLossless(bool /*lossless*/) {}

  // Whether experts may be the CPU's; true at the start. What reads them on the device alone says no.
  virtual void SetCpu(bool /*cpu*/) {}

  // Takes completions that came meanwhile. Called between steps.
  virtual void Poll() = 0;

  // Gives everything back, after an error in a step. The next step begins anew.
  virtual void Abandon() = 0;
};

}  // namespace sluice
