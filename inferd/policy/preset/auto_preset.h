// Preset `auto`: policies chosen from what a start knows of link, device, memory and profile, within a bound
// of quality that the user sets. The bound 0, the default, never changes a token.
//
// The choice compares two times of a layer of one generated token, with routing spread evenly: computing its
// experts and attention, and loading those that are not expected to be resident.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/preset.h"
#include "pack/pack.h"

namespace sluice {

struct AutoFacts {
  DeviceKind device = DeviceKind::kHost;
  uint64_t budget = 0;  // device bytes for routed experts; 0: enough for all
  uint64_t all_expert_bytes = 0;
  uint32_t top_k = 0;       // of the layer with the most
  bool look_ahead = false;  // whether expert_predictor=lookahead can predict this model
  // The time of one expert: over the link, on the device, on the CPU for one row; and that of a layer's
  // attention.
  double load_seconds = 0;
  double compute_seconds = 0;
  double cpu_seconds = 0;
  double attention_seconds = 0;
  bool cpu_beside = false;  // the CPU computes while the device does

  double quality_bound = 0;  // relative rise of perplexity
  // What the profile says; 0: nothing lies within the bound, or it was not measured.
  double single_share = 0;  // (token, layer) pairs that may use one expert
  double sparsity = 0;      // neurons that may be left out by the gate, one threshold for the model
  bool cache_profile = false;
};

struct AutoChoice {
  Policies policies;                 // of the preset `auto`
  std::vector<std::string> reasons;  // in words, for the log
};

AutoChoice ChoosePolicies(const AutoFacts& facts);

// How fast this machine reads weights and copies them.
struct MachineRates {
  double read_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
};
// Takes some tenths of a second. `threads` 0: the CPUs of the affinity mask.
absl::StatusOr<MachineRates> MeasureMachine(uint32_t threads);

// What is known without measuring. Times are in seconds per byte; 0: not known.
struct AutoSetup {
  DeviceKind device = DeviceKind::kHost;
  uint64_t budget = 0;
  double quality_bound = 0;
  double link_seconds = 0;     // of a throttled or modelled link
  double compute_seconds = 0;  // of a modelled device
  double cpu_seconds = 0;      // of the CPU beside it
  double attention_seconds = 0;
  bool cpu_beside = false;  // as in AutoFacts
};
// Fills in what the machine and the pack's profile say. Decoding reads each weight once, so a byte takes as
// long to compute as to read.
AutoFacts AutoFactsOf(const AutoSetup& setup, const Pack& pack, const MachineRates& machine);

}  // namespace sluice
