// Preset `auto`: chooses policies from the link, device, memory and profile that are known at the start,
// within a quality bound that the user sets. The bound 0, the default, never changes a token.
//
// The choice compares two times of a layer of one generated token, with routing spread evenly: computing its
// experts and attention, and loading the experts that are not expected to be resident.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/policy/policies.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct AutoFacts {
  DeviceKind device = DeviceKind::kHost;
  uint64_t budget = 0;  // device bytes for routed experts; 0: enough for all
  uint64_t all_expert_bytes = 0;
  uint32_t top_k = 0;       // maximum over the layers
  bool look_ahead = false;  // true if expert_predictor=lookahead can predict this model
  // Times of one expert: over the link, on the device, on the CPU for one row; and the time of a layer's
  // attention.
  double load_seconds = 0;
  double compute_seconds = 0;
  double cpu_seconds = 0;
  double attention_seconds = 0;
  bool cpu_parallel = false;  // true if the CPU computes in parallel with the device

  double quality_bound = 0;  // relative increase of perplexity
  // Values of the profile; 0: nothing lies within the bound, or it was not measured.
  double single_share = 0;  // share of (token, layer) pairs that may use one expert
  double sparsity = 0;      // share of neurons that may be left out by the gate, one threshold for the model
  bool cache_profile = false;
};

struct AutoChoice {
  Policies policies;                 // of the preset `auto`
  std::vector<std::string> reasons;  // in words, for the log
};

AutoChoice ChoosePolicies(const AutoFacts& facts);

// Rates at which this machine reads weights and copies them.
struct MachineRates {
  double read_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
};
// Measures for some tenths of a second. `threads` 0: the CPUs of the affinity mask.
absl::StatusOr<MachineRates> MeasureMachine(uint32_t threads);

// Facts that are known without measuring. Times are in seconds per byte; 0: not known.
struct AutoSetup {
  DeviceKind device = DeviceKind::kHost;
  uint64_t budget = 0;
  double quality_bound = 0;
  double link_seconds = 0;     // throttled or modelled link
  double compute_seconds = 0;  // modelled device
  double cpu_seconds = 0;      // CPU in parallel with the device
  double attention_seconds = 0;
  bool cpu_parallel = false;  // as in AutoFacts
};
// Adds the facts of the machine and of the pack's profile. Decoding reads each weight once, so computing a
// byte takes as long as reading it.
AutoFacts AutoFactsOf(const AutoSetup& setup, const Pack& pack, const MachineRates& machine);

}  // namespace sluice::inferd
