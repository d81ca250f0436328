// Measures the share of kept coefficients from which a machine should compute masked experts densely
// (ops.h): intra-expert's start-up profile of dense against sparse execution by batch size.
//
// Runs experts with random weights, in the encodings and row lengths in use, both ways in turn over a working
// set larger than any cache; thresholds are found for a target share. It takes a second or two; the result is
// kept in a file per machine and kind of expert.
//
// Thread safety: free functions; the backend's owner calls them, outside of a step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace sluice {

// The experts that a model computes with masks.
struct SparseProfileSpec {
  SparsityOrder order = SparsityOrder::kGate;
  EncodingDescriptor up, gate, down;
  ActivationSpec activation;
  uint32_t hidden = 0;
  uint32_t width = 0;
  uint32_t experts = 0;  // experts of a layer that one token uses: top_k
  uint32_t max_tokens = 0;
  uint64_t bytes = 0;  // bytes of weights to walk through; 0: four times the last-level cache, 64 to 512 MiB
};

// Runs the backend and clears its sparse switches. UNIMPLEMENTED where the backend has no kernels for the
// spec or the host does not see its memory; INVALID_ARGUMENT for a spec without experts, without a mask order
// or beyond the backend's limits; RESOURCE_EXHAUSTED without memory for the weights.
absl::StatusOr<SparseSwitch> MeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec);

struct SparseProfile {
  SparseSwitch found;
  bool measured = false;  // not read from the file
  absl::Status stored;    // error of storing a new measurement, if any
};

// Returns $XDG_CACHE_HOME/sluice, else $HOME/.cache/sluice, else the runtime directory.
std::string SparseProfileFolder();

// Reads the measurement from `folder` (created if missing), or measures and stores it. A file that is
// damaged, or of another CPU, instruction set, number of threads, shape or encoding, is measured again and
// replaced.
absl::StatusOr<SparseProfile> LoadOrMeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec,
                                                        const std::string& folder);

}  // namespace sluice
