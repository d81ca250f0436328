// Measures from which share of kept coefficients on a machine computes masked experts densely
// (sparse_switch.h): intra-expert's start-up profile of dense against sparse execution by batch size.
//
// Experts with random weights in the encodings and row lengths in use are run both ways, in turns, over a
// working set that no cache holds; thresholds are found that keep a wanted share. It takes a second or two
// and is kept in a file per machine and kind of expert, because none of it changes until one of these does.
//
// Thread safety: free functions; the backend's owner calls them, outside of a step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/sparse_switch.h"

namespace sluice {

// The experts that a model computes with masks.
struct SparseProfileSpec {
  SparsityOrder order = SparsityOrder::kGate;
  EncodingDescriptor up, gate, down;
  ActivationSpec activation;
  uint32_t hidden = 0;
  uint32_t width = 0;
  uint32_t experts = 0;  // of a layer that one token uses: top_k
  uint32_t max_tokens = 0;
  uint64_t bytes = 0;  // of weights to walk through; 0: four times the last-level cache, 64 to 512 MiB
};

// Runs the backend; what SetSparseSwitches set before is gone afterwards. UNIMPLEMENTED where the backend has
// no kernels for the spec or the host does not see its memory; INVALID_ARGUMENT for a spec without experts,
// without a mask order or beyond the backend's limits; RESOURCE_EXHAUSTED without memory for the weights.
absl::StatusOr<SparseSwitch> MeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec);

struct SparseProfile {
  SparseSwitch found;
  bool measured = false;  // not read from the file
  absl::Status stored;    // why a new measurement could not be kept, if it could not
};

// $XDG_CACHE_HOME/sluice, else $HOME/.cache/sluice, else the runtime directory.
std::string SparseProfileFolder();

// Reads the measurement from `folder` (made if missing), or measures and keeps it. A file that is damaged,
// or of another CPU, instruction set, number of threads, shape or encoding, is measured again and replaced.
absl::StatusOr<SparseProfile> LoadOrMeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec,
                                                        const std::string& folder);

}  // namespace sluice
