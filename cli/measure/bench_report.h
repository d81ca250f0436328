// Results of `sluice bench` and their output: llama-bench's conventions, plus memory traffic.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/json.h"

namespace sluice::cli {

// One test: `batch` concurrent sequences process `prompt` tokens and then generate `generate` tokens each.
// Named pp512, tg128 or pp512+tg128 as in llama-bench.
struct BenchTest {
  uint64_t prompt = 0;
  uint64_t generate = 0;
  uint64_t batch = 1;
  bool operator==(const BenchTest&) const = default;
  std::string name() const;
};

struct BenchLists {
  std::vector<int64_t> prompts = {512};  // 0: no such tests
  std::vector<int64_t> generates = {128};
  std::vector<int64_t> batches = {1};
  std::vector<int64_t> pairs;  // P,N,P,N,...: a prompt of P tokens, then N generated ones
};

// Returns, for every batch size, the tests of every prompt length, of every answer length and of every pair.
std::vector<BenchTest> PlanTests(const BenchLists& lists);

// Predictions for one layer made so many layers earlier (0: for the first layer, at the end of the previous
// step).
struct DepthSample {
  uint64_t layer = 0;
  uint64_t depth = 0;
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;
};

// Adds `sign` (1 or -1) times each entry of `from` to the entry of the same layer and depth in `to`.
void AddDepths(const std::vector<DepthSample>& from, int sign, std::vector<DepthSample>* to);

// Time and bytes of the operations of one part of the model.
struct PartSample {
  std::string part;
  double seconds = 0;
  uint64_t bytes = 0;     // weights and KV cache read
  uint64_t products = 0;  // multiply-adds
};

// One repetition.
struct BenchSample {
  double seconds = 0;   // from the first request to the last token
  double ttft_ms = 0;   // mean over the sequences: request to first token
  double tpot_ms = 0;   // mean over the sequences: between tokens; 0 for fewer than two
  uint64_t tokens = 0;  // prompt or generated tokens of all sequences, depending on the test
  // Increase of inferd's counters.
  uint64_t steps = 0;
  uint64_t prefetches = 0;
  uint64_t prefetches_useful = 0;
  double busy_seconds = 0;  // duration of all steps
  double load_seconds = 0;  // time that the link was busy; 0 if it is not counted
  // Sums over all layers.
  uint64_t late = 0;     // experts in transfer when chosen
  uint64_t dropped = 0;  // chosen experts that the routing or miss policy left out
  uint64_t exchanged = 0;
  uint64_t pairs = 0;    // (row, expert) pairs chosen by the model
  uint64_t neurons = 0;  // neurons that count
  uint64_t neuron_hits = 0;
  uint64_t neurons_predicted = 0;
  uint64_t neurons_right = 0;
  uint64_t neurons_wanted = 0;
  uint64_t bytes_dram = 0;  // read in weightd's DRAM
  uint64_t sparse_neurons =
      0;  // neurons of routed experts under sparsity, and those of them that were computed
  uint64_t sparse_kept = 0;
  uint64_t generated = 0;
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  uint64_t predictions = 0;
  uint64_t predictions_right = 0;
  uint64_t predictions_wanted = 0;
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;
  uint64_t weight_bytes = 0;  // read by decode steps
  uint64_t device_waits = 0;
  uint64_t device_kernels = 0;  // kernels launched, those within graphs included; 0 for a synchronous device
  uint64_t device_graph_launches = 0;
  uint64_t device_graph_changes = 0;
  uint64_t fork_joins = 0;
  double fork_join_seconds = 0;
  double kernel_seconds = 0;  // time in backend operations, parallel or not
  double stall_seconds = 0;
  double decode_seconds = 0;  // duration of steps with decode rows only
  uint64_t decode_steps = 0;
  // Drafts of speculation by their position behind the last token, and those of them that became tokens.
  std::vector<uint64_t> drafts_verified;
  std::vector<uint64_t> drafts_accepted;
  std::vector<DepthSample> depths;
  std::vector<PartSample> parts;  // attention, router, experts, head, other; empty: not reported
};

// Counters that are summed over all layers.
inline constexpr uint64_t BenchSample::*kLayerCounts[] = {&BenchSample::late,
                                                          &BenchSample::dropped,
                                                          &BenchSample::exchanged,
                                                          &BenchSample::pairs,
                                                          &BenchSample::neurons,
                                                          &BenchSample::neuron_hits,
                                                          &BenchSample::neurons_predicted,
                                                          &BenchSample::neurons_right,
                                                          &BenchSample::neurons_wanted,
                                                          &BenchSample::bytes_dram,
                                                          &BenchSample::sparse_neurons,
                                                          &BenchSample::sparse_kept};

struct BenchResult {
  BenchTest test;
  std::string preset;
  std::vector<BenchSample> samples;
  std::optional<Json> explained;  // ExplainJson() of the result
};

// Settings shared by all results.
struct BenchSetting {
  std::string version;
  std::string model;
  std::string model_id;
  uint64_t model_bytes = 0;
  std::string device;
  std::string backend;
  std::string threads;
  std::optional<double> read_bandwidth;  // bytes per second, to which rates are compared
  uint64_t read_bytes = 0;               // size of the memory over which it was measured
};

struct MeanStddev {
  double mean = 0;
  double stddev = 0;  // of the sample (n - 1); 0 for a single value
};
MeanStddev Summarize(const std::vector<double>& values);

// Returns one result as JSON: keys of llama-bench, and our own, on which scripts rely.
Json ResultJson(const BenchResult& result, const BenchSetting& setting);

enum class BenchFormat { kMarkdown, kJson, kCsv, kJsonLines };
// Accepts "md", "json", "csv", "jsonl".
absl::StatusOr<BenchFormat> BenchFormatFromName(const std::string& name);

// Formats one object a result. REQUIRES: format != BenchFormat::kMarkdown.
std::string FormatObjects(const std::vector<Json>& objects, BenchFormat format);
std::string FormatResults(const std::vector<BenchResult>& results, const BenchSetting& setting,
                          BenchFormat format);

}  // namespace sluice::cli
