// Baseline of bench's "share of the read bandwidth": the rate at which this host's threads read as many bytes
// as the pack has, measured in the same run while the daemons are idle.
//
// The bytes are anonymous memory on huge pages, the best mapping that weightd could have, so the share is
// never too high.
//
// Thread safety: a free function; other use of the memory bandwidth distorts the result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/json.h"
#include "cli/measure/bench_report.h"

namespace sluice {

// Size of the memory that a measurement reads.
struct ReadBaseSize {
  uint64_t bytes = 0;  // whole huge pages; 0: too little free memory for a meaningful figure
  std::string note;    // for the user: reason for a smaller size; "" if there is none
};

// Returns the size for a pack of `pack_bytes`: all of it, at most 4 GiB and half of `usable_bytes`, the
// memory that this process may still allocate (UsableMemory). Less than 256 MiB of a larger pack would
// measure caches, and gives 0.
ReadBaseSize SizeOfReadBase(uint64_t pack_bytes, uint64_t usable_bytes);

// Returns the bytes per second of `threads` threads over `bytes` of memory, which is read until at least 4
// GiB have passed. RESOURCE_EXHAUSTED naming the bytes if the allocation fails.
absl::StatusOr<double> MeasureReadBase(uint64_t bytes, uint32_t threads);

}  // namespace sluice

// Explanation of a benchmark's step time by parts of the model, and the bound of each part: its bytes at the
// rate at which this host reads memory, or its multiply-adds at the rate that its instructions reach with
// weights in caches. Both rates are measured in the same run.
//
// Thread safety: plain values and pure functions.

namespace sluice::cli {

// Rates of this host, per second; 0: not measured.
struct ExplainRates {
  double read = 0;             // bytes
  double products = 0;         // multiply-adds of dense weights
  double expert_products = 0;  // of experts
};

// Rows of a test's step, and rows per computed expert if experts were chosen evenly. The rate of the
// instructions depends on both.
struct ExplainRows {
  uint32_t step = 1;
  uint32_t expert = 1;
};
// Rows for a model with `experts` per layer and `top_k` of them per token; 0 experts: dense. `chunk`: maximum
// rows of a prompt in one step.
ExplainRows RowsOf(const BenchTest& test, uint32_t experts, uint32_t top_k, uint32_t chunk);

enum class Bound : uint8_t { kNone, kMemory, kInstructions };

// One line: means over the samples, per token of the test (prompt and answer, all sequences).
struct ExplainLine {
  std::string part;  // a part of the model, "waits" or "between"
  double seconds = 0;
  double share = 0;  // of the step time
  double bytes = 0;
  double products = 0;
  Bound bound = Bound::kNone;  // the longer of the two
  double bound_seconds = 0;
};

struct Explanation {
  double seconds = 0;  // step time per token
  std::vector<ExplainLine> lines;
  ExplainRates rates;
  ExplainRows rows;
};

// Lists the parts of a result's steps, the waits for experts, and the rest of the step time. No lines: the
// device does not report parts.
Explanation Explain(const BenchResult& result, const ExplainRates& rates, const ExplainRows& rows);

std::string ExplainText(const BenchResult& result, const Explanation& explanation);
Json ExplainJson(const Explanation& explanation);

}  // namespace sluice::cli

// One repetition of a benchmark: concurrent requests, timed by the client, with inferd's counters before and
// after.
//
// Thread safety: RunOnce uses threads of its own, which end before it returns; call it from one thread.

namespace sluice::cli {

struct BenchInput {
  std::vector<std::vector<int32_t>> prompts;  // by sequence
  double temperature = 0;
  uint64_t seed = 0;                      // sampling seed; each sequence derives its own
  std::vector<api::StatedDrafts> drafts;  // by sequence; empty: plain decoding
};

// Draws random token ids below `vocab` from `seed`; a test without a prompt starts from one token.
BenchInput RandomInput(const BenchTest& test, uint64_t vocab, uint64_t seed);

using BenchAnswers = std::vector<std::vector<uint32_t>>;

// Answers run to their full length past any end token. `server_times`: uses inferd's own times instead of the
// client's, since only inferd knows a virtual clock. `answers`: receives the token ids of each sequence;
// null: not wanted. REQUIRES: one prompt for each sequence of the test.
absl::StatusOr<BenchSample> RunOnce(Client* client, const BenchTest& test, const BenchInput& input,
                                    bool server_times, BenchAnswers* answers = nullptr);

}  // namespace sluice::cli
