// Workloads: a router trace (inferd/policy/TRACE.md) through the cache's eviction policies and Belady's
// oracle, without the model. Prints hit rates by slots of a layer, the mean over layers, a sweep of the score
// window, and the gain of AdapMoE's allocation from measured stack distances over equal slots.
//
//   cache_replay TRACE [--slots 2,4,6] [--order pinned|sequential] [--windows 8,16,32,64] [--json]
//
// Thread safety: one thread.
#include "lab/cache_replay.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "inferd/policy/cache_allocation.h"

namespace sluice {
namespace {

struct Options {
  std::string path;
  std::vector<uint32_t> slots;  // empty: all numbers of slots
  std::vector<uint32_t> windows = {32};
  inferd::ReplayOrder order = inferd::ReplayOrder::kPinned;
  bool json = false;
};

struct Column {
  std::string name;
  std::vector<std::vector<double>> rates;  // [layer][slots]
};

bool ParseCounts(const char* text, std::vector<uint32_t>* counts) {
  counts->clear();
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (!absl::SimpleAtoi(word, &counts->emplace_back()) || counts->back() == 0) return false;
  }
  return true;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--json") {
      options->json = true;
    } else if (word == "--slots" && ParseCounts(value, &options->slots)) {
      ++i;
    } else if (word == "--windows" && ParseCounts(value, &options->windows)) {
      ++i;
    } else if (word == "--order" &&
               (std::strcmp(value, "pinned") == 0 || std::strcmp(value, "sequential") == 0)) {
      options->order =
          std::strcmp(value, "pinned") == 0 ? inferd::ReplayOrder::kPinned : inferd::ReplayOrder::kSequential;
      ++i;
    } else if (options->path.empty() && word[0] != '-') {
      options->path = word;
    } else {
      return false;
    }
  }
  return !options->path.empty();
}

template <typename Replay>
Column Measure(const std::string& name, const inferd::Trace& trace, const std::vector<uint32_t>& slots,
               const Replay& replay) {
  Column column{name, {}};
  for (const inferd::TraceLayer& layer : trace.layers) {
    if (layer.experts == 0) continue;
    std::vector<double>& row = column.rates.emplace_back();
    for (const uint32_t count : slots) row.push_back(replay(layer, std::min(count, layer.experts)).rate());
  }
  return column;
}

std::vector<Column> MeasureAll(const Options& options, const inferd::Trace& trace,
                               const std::vector<uint32_t>& slots) {
  std::vector<Column> columns;
  const auto add = [&](const std::string& name, const inferd::SlotEvictionOptions& eviction) {
    columns.push_back(Measure(name, trace, slots, [&](const inferd::TraceLayer& layer, uint32_t count) {
      return inferd::ReplayEviction(layer, count, eviction, options.order);
    }));
  };
  add("lru", {inferd::SlotEviction::kLru});
  add("lfru", {inferd::SlotEviction::kLfru});
  for (const uint32_t window : options.windows) {
    add(absl::StrCat("score", options.windows.size() == 1 ? "" : absl::StrCat(window)),
        {inferd::SlotEviction::kScore, window});
  }
  columns.push_back(Measure("oracle", trace, slots, inferd::ReplayOracle));
  return columns;
}

double Mean(const Column& column, size_t slot) {
  double sum = 0;
  for (const std::vector<double>& layer : column.rates) sum += layer[slot];
  return sum / static_cast<double>(column.rates.size());
}

void PrintTable(const std::vector<Column>& columns, const std::vector<uint32_t>& slots) {
  std::printf("| layer | slots |");
  for (const Column& column : columns) std::printf(" %s |", column.name.c_str());
  std::printf("\n|---|---|");
  for (size_t i = 0; i < columns.size(); ++i) std::printf("---|");
  for (size_t layer = 0; layer <= columns[0].rates.size(); ++layer) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const bool mean = layer == columns[0].rates.size();
      std::printf("\n| %s | %u |", mean ? "mean" : absl::StrCat(layer).c_str(), slots[i]);
      for (const Column& column : columns) {
        std::printf(" %.4f |", mean ? Mean(column, i) : column.rates[layer][i]);
      }
    }
  }
  std::printf("\n");
}

void PrintJson(const std::vector<Column>& columns, const std::vector<uint32_t>& slots) {
  std::vector<std::string> members;
  for (const Column& column : columns) {
    const std::string rows =
        absl::StrJoin(column.rates, ", ", [](std::string* out, const std::vector<double>& row) {
          absl::StrAppend(
              out, "[",
              absl::StrJoin(row, ", ",
                            [](std::string* to, double rate) { absl::StrAppendFormat(to, "%.9f", rate); }),
              "]");
        });
    members.push_back(absl::StrCat("\"", column.name, "\": [", rows, "]"));
  }
  std::printf("{\"slots\": [%s], \"rates\": {%s}}\n", absl::StrJoin(slots, ", ").c_str(),
              absl::StrJoin(members, ", ").c_str());
}

// Prints the misses per token over all layers under LRU, with `share` of the experts as slots in total.
void PrintAllocation(const inferd::Trace& trace) {
  std::vector<uint32_t> experts;
  std::vector<std::vector<double>> curves;
  uint64_t all = 0;
  for (const inferd::TraceLayer& layer : trace.layers) {
    inferd::StackDistances distances(layer.experts);
    for (uint64_t token = 0; token < layer.tokens(); ++token) {
      const absl::Span<const uint32_t> chosen = layer.Chosen(token);
      distances.Add(std::vector<uint32_t>(chosen.rbegin(), chosen.rend()));
    }
    experts.push_back(layer.experts);
    curves.push_back(distances.MissCurve());
    all += layer.experts;
  }
  std::printf(
      "\n| share of the experts | misses of a token, uniform | by misses | slots by layer "
      "|\n|---|---|---|---|\n");
  for (const uint64_t quarter : {1, 2, 3}) {
    const std::vector<uint32_t> uniform = inferd::AllocateUniform(experts, all * quarter / 4);
    const std::vector<uint32_t> measured = inferd::AllocateByCost(curves, all * quarter / 4);
    const auto cost = [&](const std::vector<uint32_t>& slots) {
      double sum = 0;
      for (size_t i = 0; i < slots.size(); ++i) sum += curves[i][slots[i]];
      return sum;
    };
    std::printf("| %d %% | %.4f | %.4f | %s |\n", static_cast<int>(quarter * 25), cost(uniform),
                cost(measured), absl::StrJoin(measured, " ").c_str());
  }
}

int Run(const Options& options) {
  const absl::StatusOr<inferd::Trace> trace = inferd::ReadTrace(options.path);
  if (!trace.ok()) {
    std::fprintf(stderr, "cache_replay: %s\n", std::string(trace.status().message()).c_str());
    return 1;
  }
  uint32_t most = 0;
  for (const inferd::TraceLayer& layer : trace->layers) most = std::max(most, layer.experts);
  std::vector<uint32_t> slots = options.slots;
  for (uint32_t count = 1; options.slots.empty() && count <= most; ++count) slots.push_back(count);
  const std::vector<Column> columns = MeasureAll(options, *trace, slots);
  if (columns[0].rates.empty()) {
    std::fprintf(stderr, "cache_replay: %s has no layer with experts\n", options.path.c_str());
    return 1;
  }
  if (options.json) {
    PrintJson(columns, slots);
  } else {
    PrintTable(columns, slots);
    PrintAllocation(*trace);
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  if (!sluice::Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: cache_replay TRACE [--slots 2,4] [--order pinned|sequential] [--windows 8,32] [--json]\n");
    return 2;
  }
  return sluice::Run(options);
}
