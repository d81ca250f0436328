// Speculation at a stated acceptance (`sluice bench --accept`): the price of verification without trained
// heads. The same requests are answered plainly and with drafts of their known answers, which are wrong on
// purpose at places that the seed decides, in turn and by one server.
//
// Thread safety: plain values and pure functions, but for RunAccept, which calls RunOnce.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/json.h"
#include "cli/measure/bench_report.h"
#include "cli/measure/bench_run.h"

namespace sluice::cli {

struct AcceptTest {
  BenchTest test;
  double acceptance = 0;  // probability that a draft is right
  uint32_t drafts = 1;    // most of a step
  bool all = false;       // verifies all of them; otherwise as many as measured times make worth it
};

// Decoding without and with drafts, alternately; samples of equal index answered the same requests.
struct AcceptResult {
  AcceptTest test;
  std::string preset;
  std::vector<BenchSample> plain;
  std::vector<BenchSample> speculative;
  bool same_tokens = true;  // every answer with drafts was the plain one
};

// Runs `repetitions` pairs, the prompts of pair i from `seed` + i. An answer that counts for nothing comes
// first, for the drafts; pairs begin with and without drafts in turn. Times are inferd's own: a
// client may get several tokens at once. `progress`: called after each pair.
absl::StatusOr<AcceptResult> RunAccept(Client* client, const AcceptTest& test, uint64_t vocab,
                                       uint64_t repetitions, uint64_t seed,
                                       const std::function<void(uint64_t)>& progress);

// Figures of a result.
struct AcceptFigures {
  double plain = 0;  // tokens per second between the first tokens and the last: medians
  double speculative = 0;
  double ratio = 0;              // median over the pairs
  double tokens_a_step = 0;      // per sequence, of the answers with drafts
  std::vector<double> accepted;  // by position: share of the drafts that became tokens; -1: none verified
  std::vector<double> verified;  // by position: share of the sequences' steps that verified such a draft
};
AcceptFigures FiguresOf(const AcceptResult& result);

// REQUIRES: at least one sample of each kind.
Json AcceptJson(const AcceptResult& result, const BenchSetting& setting);
std::string FormatAccept(const std::vector<AcceptResult>& results, const BenchSetting& setting,
                         BenchFormat format);

}  // namespace sluice::cli
