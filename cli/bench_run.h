// One repetition of a benchmark: several requests at once, timed from this side, with inferd's counters
// before and after.
//
// Thread safety: RunOnce uses threads of its own and returns when they have ended; call it from one thread.
#ifndef SLUICE_CLI_BENCH_RUN_H_
#define SLUICE_CLI_BENCH_RUN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cli/bench_report.h"
#include "cli/client.h"

namespace sluice::cli {

// Prompts are random token ids below `vocab`, drawn from `seed`; a test without prompt starts from one token.
// Answers run to their full length past any end token. `server_times`: inferd's own times count, not those
// seen from here: on a virtual clock only it knows them.
absl::StatusOr<BenchSample> RunOnce(Client* client, const BenchTest& test, uint64_t vocab, uint64_t seed,
                                    bool server_times);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_BENCH_RUN_H_
