// The arithmetic of `sluice perplexity`: windows, losses, divergence. cli/README.md has the protocol.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace sluice::cli {

// Tokens [begin, end) of the text go through the model together; those from `first_scored` on count. Every
// token of the text is counted by exactly one window.
struct Window {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t first_scored = 0;
  bool operator==(const Window&) const = default;
};

// Windows of `window` tokens, each beginning `stride` after the one before; the last may be shorter.
// REQUIRES: 1 <= stride <= window.
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

// Sums in the order of the windows, whatever order they were computed in.
PerplexityResult Summarize(absl::Span<const WindowLoss> windows);

// Natural-log probabilities of a row of logits, in place. Sums in float64.
void LogSoftmax(absl::Span<float> row);

// KL(base || run) in nats of two rows of log probabilities of the same length, in float64.
double KlDivergence(absl::Span<const float> base, absl::Span<const float> run);

// Index of the largest value, the lower of equals. REQUIRES: not empty.
uint32_t ArgMax(absl::Span<const float> row);

}  // namespace sluice::cli
