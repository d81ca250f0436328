#include "cli/measure/quality/perplexity_math.h"

#include <algorithm>
#include <cmath>

namespace sluice::cli {

std::vector<Window> PlanWindows(uint64_t tokens, uint64_t window, uint64_t stride) {
  std::vector<Window> windows;
  uint64_t scored = 0;
  for (uint64_t begin = 0; scored < tokens; begin += stride) {
    const uint64_t end = std::min(begin + window, tokens);
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

PerplexityResult Summarize(absl::Span<const WindowLoss> windows) {
  WindowLoss all;
  for (const WindowLoss& window : windows) {
    all.tokens += window.tokens;
    all.nll += window.nll;
    all.nll_squares += window.nll_squares;
    all.compared += window.compared;
    all.kld += window.kld;
    all.same_top += window.same_top;
  }
  PerplexityResult result;
  result.tokens = all.tokens;
  if (all.tokens > 0) {
    const double n = static_cast<double>(all.tokens);
    result.nll = all.nll / n;
    result.ppl = std::exp(result.nll);
    const double variance = std::max(0.0, all.nll_squares / n - result.nll * result.nll);
    result.ppl_stderr = result.ppl * std::sqrt(variance / n);
  }
  if (all.compared > 0) {
    result.kld_mean = all.kld / static_cast<double>(all.compared);
    result.same_top = static_cast<double>(all.same_top) / static_cast<double>(all.compared);
  }
  return result;
}

void LogSoftmax(absl::Span<float> row) {
  const double top = row[ArgMax(row)];
  double sum = 0;
  for (const float value : row) {
    sum += std::exp(value - top);
  }
  const double norm = top + std::log(sum);
  for (float& value : row) {
    value = static_cast<float>(value - norm);
  }
}

double KlDivergence(absl::Span<const float> base, absl::Span<const float> run) {
  double sum = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double b = base[i];
    sum += std::exp(b) * (b - run[i]);
  }
  return sum;
}

uint32_t ArgMax(absl::Span<const float> row) {
  return static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace sluice::cli
