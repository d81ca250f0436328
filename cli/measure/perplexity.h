// Arithmetic of `sluice perplexity`: windows, losses, divergence. cli/README.md describes the protocol.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/json.h"
#include "cli/launcher.h"
#include "pack/pack.h"
#include "sluice/inference/v1/admin.pb.h"

namespace sluice::cli {

// Tokens [begin, end) of the text run through the model together; those from `first_scored` on count. Every
// token of the text counts in exactly one window.
struct Window {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t first_scored = 0;
  bool operator==(const Window&) const = default;
};

// Returns windows of `window` tokens, each beginning `stride` tokens after the previous one; the last may be
// shorter. REQUIRES: 1 <= stride <= window.
std::vector<Window> PlanWindows(uint64_t tokens, uint64_t window, uint64_t stride);

// Sums over one window, in float64.
struct WindowLoss {
  uint64_t tokens = 0;
  double nll = 0;          // sum of -ln p(target)
  double nll_squares = 0;  // sum of its squares
  uint64_t compared = 0;   // positions compared with the base run
  double kld = 0;          // sum of KL(base || run), nats
  uint64_t same_top = 0;   // positions with the same most likely token

  void AddTarget(double logprob) {
    ++tokens;
    nll -= logprob;
    nll_squares += logprob * logprob;
  }
};

struct PerplexityResult {
  double ppl = 0;
  double nll = 0;  // per token
  uint64_t tokens = 0;
  double ppl_stderr = 0;  // ppl x (standard deviation of token losses / sqrt(tokens))
  std::optional<double> kld_mean;
  std::optional<double> same_top;  // share, 0..1
};

// Sums in window order, whatever the order in which windows were computed.
PerplexityResult Summarize(absl::Span<const WindowLoss> windows);

// Converts a row of logits to natural-log probabilities, in place. Sums in float64.
void LogSoftmax(absl::Span<float> row);

// Returns KL(base || run) in nats for two rows of log probabilities of equal length, in float64.
double KlDivergence(absl::Span<const float> base, absl::Span<const float> run);

// Returns the index of the largest value, the lowest among equals. REQUIRES: not empty.
uint32_t ArgMax(absl::Span<const float> row);

// Weight bytes that a generated token reads: the x-axis of every quality plot.
//
// Thread safety: a pure function.

// Encoded bytes of all dense tensors (of an embedding that is not also the head only one row) and, per layer,
// of top-k experts of mean size. `order`: the sparsity's (none, up, gate, product). `left_out`: by layer, the
// share of neurons left out: lead parts are read whole, other parts only in the rows that count.
double BytesPerToken(const Pack& pack, const std::string& order, const std::vector<double>& left_out);

// Returns the bits per weight of the routed experts, scales and zeros included; 0 without any.
double ExpertBitsPerWeight(const Pack& pack);

// Perplexity of a served model on a text: the protocol of cli/README.md, through a launcher's client.
//
// Thread safety: MeasurePerplexity uses threads of its own; one call at a time per launcher.

struct PerplexityTask {
  std::string text;  // path of a file
  uint64_t window = 512;
  uint64_t stride = 512;
  uint64_t max_tokens = UINT64_MAX;
  std::string kl_base;    // file of a base run, or empty
  std::string save_base;  // file of a base run to write, or empty
  bool quiet = false;
};

// Share of neurons that the routed experts left out during the run.
struct SparsityRun {
  std::vector<double> by_layer;  // empty without sparsity
  double mean = 0;               // over all neurons of all layers
};

struct PerplexityRun {
  PerplexityResult result;
  SparsityRun sparsity;
  // Encoded weight bytes that one generated token reads at that sparsity: dense matrices, router, shared and
  // routed experts.
  double bytes_per_token = 0;
  double bits_per_weight = 0;   // of the routed experts, scales included
  std::optional<Json> experts;  // ExpertsJson(); none from a server without an admin socket
};

// INVALID_ARGUMENT: an empty text, a window larger than the server's context, or a base run of another text.
absl::StatusOr<PerplexityRun> MeasurePerplexity(Launcher* launcher, const PerplexityTask& task);

// Statistics of the routed experts during a run, from the server's counters by layer before and after it.
//
// Thread safety: plain values and pure functions.

// Returns sums over layers and shares of them; `layers` has the shares by layer. A share of zero is null.
Json ExpertsJson(const inference::v1::GetStatsResponse& before, const inference::v1::GetStatsResponse& after);

}  // namespace sluice::cli
