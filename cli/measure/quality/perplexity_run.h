// Perplexity of a served model on a text: the protocol of cli/README.md, run through a launcher's client.
//
// Thread safety: MeasurePerplexity uses threads of its own; one call at a time per launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/launch/launcher.h"
#include "cli/measure/quality/perplexity_math.h"
#include "cli/ui/json.h"

namespace sluice::cli {

struct PerplexityTask {
  std::string text;  // a file
  uint64_t window = 512;
  uint64_t stride = 512;
  uint64_t max_tokens = UINT64_MAX;
  std::string kl_base;    // file of a base run, or empty
  std::string save_base;  // the same, to write
  bool quiet = false;
};

// The share of neurons that the routed experts of a layer left out during the run.
struct SparsityRun {
  std::vector<double> by_layer;  // empty without sparsity
  double mean = 0;               // over all neurons of all layers
};

struct PerplexityRun {
  PerplexityResult result;
  SparsityRun sparsity;
  // Weights that one generated token reads, encoded, at that sparsity: dense matrices, router, shared and
  // routed experts.
  double bytes_per_token = 0;
  double bits_per_weight = 0;  // of the routed experts, scales included
  std::optional<Json>
      experts;  // what happened to them (expert_run.h); none from a server without admin socket
};

// INVALID_ARGUMENT: an empty text, a window beyond the server's context, a base run of another text.
absl::StatusOr<PerplexityRun> MeasurePerplexity(Launcher* launcher, const PerplexityTask& task);

}  // namespace sluice::cli
