// Results of `sluice bench` and their printing: llama-bench's conventions, plus the traffic.
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

// One line of the matrix: `prompt` tokens computed, then `generate` tokens generated, by `batch` sequences at
// once. Named pp512, tg128 or pp512+tg128 as llama-bench does.
struct BenchTest {
  uint64_t prompt = 0;
  uint64_t generate = 0;
  uint64_t batch = 1;
  bool operator==(const BenchTest&) const = default;
  std::string name() const;
};

struct BenchLists {
  std::vector<int64_t> prompts = {512};  // 0 leaves the kind out
  std::vector<int64_t> generates = {128};
  std::vector<int64_t> batches = {1};
  std::vector<int64_t> pairs;  // P,N,P,N,...: one after the other
};

// Every batch size with every prompt length, then every length of answer, then every pair.
std::vector<BenchTest> PlanTests(const BenchLists& lists);

// Experts predicted for one layer, so many layers ahead (0: the first layer, at the end of the step before).
struct DepthSample {
  uint64_t layer = 0;
  uint64_t depth = 0;
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;
};

// Adds `sign` (1 or -1) times every entry of `from` to that of the same layer and depth, or as a new one.
void AddDepths(const std::vector<DepthSample>& from, int sign, std::vector<DepthSample>* to);

// Time and bytes of the operations of one part of the model.
struct PartSample {
  std::string part;
  double seconds = 0;
  uint64_t bytes = 0;     // of weights and cache
  uint64_t products = 0;  // multiply-adds
};

// One repetition.
struct BenchSample {
  double seconds = 0;   // from the first request to the last token
  double ttft_ms = 0;   // mean over the sequences: request to first token
  double tpot_ms = 0;   // mean over the sequences: between tokens; 0 for fewer than two
  uint64_t tokens = 0;  // of all sequences, by the kind of test
  // Growth of inferd's counters.
  uint64_t steps = 0;
  uint64_t prefetches = 0;
  uint64_t prefetches_useful = 0;
  double busy_seconds = 0;  // of all steps
  double load_seconds = 0;  // that the link was busy; 0 where it is not counted
  // Sums over all layers.
  uint64_t late = 0;     // experts on their way when chosen
  uint64_t dropped = 0;  // chosen experts that routing or a missing expert's policy left out
  uint64_t exchanged = 0;
  uint64_t pairs = 0;    // of rows and experts that routing looked at
  uint64_t neurons = 0;  // that counted
  uint64_t neuron_hits = 0;
  uint64_t neurons_predicted = 0;
  uint64_t neurons_right = 0;
  uint64_t neurons_wanted = 0;
  uint64_t bytes_dram = 0;      // read where they lie
  uint64_t sparse_neurons = 0;  // of routed experts under sparsity, and those of them that were computed
  uint64_t sparse_kept = 0;
  uint64_t generated = 0;
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  uint64_t predictions = 0;
  uint64_t predictions_right = 0;
  uint64_t predictions_wanted = 0;
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;
  uint64_t weight_bytes = 0;  // that decode steps read
  uint64_t device_waits = 0;
  uint64_t device_kernels = 0;  // with graphs of them: 0 for a device without
  uint64_t device_graph_launches = 0;
  uint64_t device_graph_changes = 0;
  uint64_t fork_joins = 0;
  double fork_join_seconds = 0;
  double kernel_seconds = 0;  // in operations, parallel or not
  double stall_seconds = 0;
  double decode_seconds = 0;  // of steps of generated tokens alone
  std::vector<DepthSample> depths;
  std::vector<PartSample> parts;  // attention, router, experts, head, other; empty: they are not told
};

// Its counts of all layers.
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
  std::optional<Json> explained;  // ExplainJson() of it
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
  std::optional<double> read_bandwidth;  // bytes per second, the base of the share
  uint64_t read_bytes = 0;               // of memory that it was measured over
};

struct MeanStddev {
  double mean = 0;
  double stddev = 0;  // of the sample (n - 1); 0 for one value
};
MeanStddev Summarize(const std::vector<double>& values);

// The object of one result, with the keys of the contract and llama-bench's.
Json ResultJson(const BenchResult& result, const BenchSetting& setting);

enum class BenchFormat { kMarkdown, kJson, kCsv, kJsonLines };
// "md", "json", "csv", "jsonl".
absl::StatusOr<BenchFormat> BenchFormatFromName(const std::string& name);

std::string FormatResults(const std::vector<BenchResult>& results, const BenchSetting& setting,
                          BenchFormat format);

}  // namespace sluice::cli
