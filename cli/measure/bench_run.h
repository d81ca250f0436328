// The base of the bench's "share of the read bandwidth": how fast this host's threads read as many bytes as
// the pack has, measured in the same run, when the daemons are idle.
//
// The bytes are anonymous memory on huge pages: the best mapping that weightd could have, so the share is
// never flattered.
//
// Thread safety: a free function; nothing else should use the memory bandwidth meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/json.h"
#include "cli/measure/bench_report.h"

namespace sluice {

// Bytes of memory that a measurement reads.
struct ReadBaseSize {
  uint64_t bytes = 0;  // whole huge pages; 0: too little is free for a figure that means memory
  std::string note;    // what is less than wanted and why, for people; "" where nothing is
};

// Size for a pack of `pack_bytes`: all of it, at most 4 GiB and half of `usable_bytes`, which is what this
// process may still take (UsableMemory: its cgroup counts too). Less than 256 MiB of a larger pack would
// measure caches, so it is nothing.
ReadBaseSize SizeOfReadBase(uint64_t pack_bytes, uint64_t usable_bytes);

// Bytes per second of `threads` threads over `bytes` of memory, read until at least 4 GiB have passed.
// RESOURCE_EXHAUSTED naming the bytes when the memory cannot be had.
absl::StatusOr<double> MeasureReadBase(uint64_t bytes, uint32_t threads);

}  // namespace sluice

// Where the time of a benchmark's steps went, part by part, and what bounds each: the bytes that it reads at
// the rate that this host reads memory, or the multiply-adds that it does at the rate that its instructions
// allow when weights lie in caches. Both rates are measured in the same run.
//
// Thread safety: plain values and pure functions.

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

// One repetition of a benchmark: several requests at once, timed from this side, with inferd's counters
// before and after.
//
// Thread safety: RunOnce uses threads of its own and returns when they have ended; call it from one thread.

namespace sluice::cli {

struct BenchInput {
  std::vector<std::vector<int32_t>> prompts;  // by sequence
  double temperature = 0;
  uint64_t seed = 0;  // of sampling; each sequence's follows from it
};

// Random token ids below `vocab`, drawn from `seed`; a test without prompt starts from one token.
BenchInput RandomInput(const BenchTest& test, uint64_t vocab, uint64_t seed);

// Answers run to their full length past any end token. `server_times`: inferd's own times count, not those
// seen from here: on a virtual clock only it knows them. REQUIRES: one prompt for each sequence of the test.
absl::StatusOr<BenchSample> RunOnce(Client* client, const BenchTest& test, const BenchInput& input,
                                    bool server_times);

}  // namespace sluice::cli
