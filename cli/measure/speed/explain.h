// Where the time of a benchmark's steps went, part by part, and what bounds each: the bytes that it reads at
// the rate that this host reads memory, or the multiply-adds that it does at the rate that its instructions
// allow when weights lie in caches. Both rates are measured in the same run.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/measure/speed/bench_report.h"
#include "cli/ui/json.h"

namespace sluice::cli {

// Rates of this host, per second; 0: not measured.
struct ExplainRates {
  double read = 0;             // bytes
  double products = 0;         // multiply-adds of dense weights
  double expert_products = 0;  // of experts
};

// Rows of a test's step, and rows of each computed expert if experts were chosen
// evenly: what instructions allow depends on it.
struct ExplainRows {
  uint32_t step = 1;
  uint32_t expert = 1;
};
// Rows for a model with `experts` a layer, `top_k` of them a token; 0 experts: dense. `chunk`: rows of a
// prompt that a step takes at most.
ExplainRows RowsOf(const BenchTest& test, uint32_t experts, uint32_t top_k, uint32_t chunk);

enum class Bound : uint8_t { kNone, kMemory, kInstructions };

// One line: means over the samples, for each token of the test (of prompt and answer, of all sequences).
struct ExplainLine {
  std::string part;  // a part of the model, "waits" or "between"
  double seconds = 0;
  double share = 0;  // of the steps' time
  double bytes = 0;
  double products = 0;
  Bound bound = Bound::kNone;  // which takes longer
  double bound_seconds = 0;
};

struct Explanation {
  double seconds = 0;  // a token, of steps
  std::vector<ExplainLine> lines;
  ExplainRates rates;
  ExplainRows rows;
};

// The parts of a result's steps, the waiting for experts, and what is left of the steps' time. No lines: the
// device does not tell.
Explanation Explain(const BenchResult& result, const ExplainRates& rates, const ExplainRows& rows);

std::string ExplainText(const BenchResult& result, const Explanation& explanation);
Json ExplainJson(const Explanation& explanation);

}  // namespace sluice::cli
