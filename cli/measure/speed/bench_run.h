// One repetition of a benchmark: several requests at once, timed from this side, with inferd's counters
// before and after.
//
// Thread safety: RunOnce uses threads of its own and returns when they have ended; call it from one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "cli/measure/speed/bench_report.h"

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
