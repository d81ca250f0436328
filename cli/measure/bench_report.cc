#include "cli/measure/bench_report.h"

#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/size.h"

namespace sluice::cli {
namespace {

// Figures of one result: means over the repetitions, absent where the test does not measure them.
struct Figures {
  MeanStddev rate;  // tokens per second
  std::vector<double> rates;
  MeanStddev nanoseconds;
  std::vector<uint64_t> samples_ns;
  double ttft_ms = 0;
  std::optional<double> tpot_ms;
  std::optional<double> hit_rate;
  std::optional<double> precision;
  std::optional<double> recall;
  double stall_seconds = 0;
  double link_gbps = 0;
  double ssd_gbps = 0;
  std::optional<double> weight_gbps;
  std::optional<double> read_bandwidth_share;
  std::optional<double> waits_per_token;  // waits of the host for the device
  std::optional<double> kernels_per_token;
  std::optional<double> graphs_per_token;
  std::optional<double> graph_changes_per_token;
  std::optional<double> fork_joins_per_token;
  std::optional<double> fork_join_ms_per_token;
};

template <typename T>
T Sum(const std::vector<BenchSample>& samples, T BenchSample::*member) {
  T sum{};
  for (const BenchSample& sample : samples) {
    sum += sample.*member;
  }
  return sum;
}

std::optional<double> Share(double part, double whole) {
  return whole > 0 ? std::optional<double>(part / whole) : std::nullopt;
}

Figures FiguresOf(const BenchResult& result, const BenchSetting& setting) {
  const std::vector<BenchSample>& samples = result.samples;
  const auto sum = [&samples](auto member) { return static_cast<double>(Sum(samples, member)); };
  const double n = static_cast<double>(samples.size());
  Figures figures;
  std::vector<double> nanoseconds;
  for (const BenchSample& sample : samples) {
    figures.rates.push_back(static_cast<double>(sample.tokens) / sample.seconds);
    nanoseconds.push_back(sample.seconds * 1e9);
    figures.samples_ns.push_back(static_cast<uint64_t>(sample.seconds * 1e9));
  }
  figures.rate = Summarize(figures.rates);
  figures.nanoseconds = Summarize(nanoseconds);
  const double seconds = sum(&BenchSample::seconds);
  figures.ttft_ms = sum(&BenchSample::ttft_ms) / n;
  if (result.test.generate >= 2) {
    figures.tpot_ms = sum(&BenchSample::tpot_ms) / n;
  }
  const double requests = sum(&BenchSample::expert_requests);
  figures.hit_rate = Share(sum(&BenchSample::expert_hits), requests);
  const double predictions = sum(&BenchSample::predictions);
  if (predictions > 0) {
    figures.precision = Share(sum(&BenchSample::predictions_right), predictions);
    figures.recall = Share(sum(&BenchSample::predictions_right), sum(&BenchSample::predictions_wanted));
  }
  figures.stall_seconds = sum(&BenchSample::stall_seconds) / n;
  figures.link_gbps = sum(&BenchSample::bytes_link) / seconds / 1e9;
  figures.ssd_gbps = sum(&BenchSample::bytes_ssd) / seconds / 1e9;
  if (result.test.generate >= 2) {
    const std::optional<double> weight_rate =
        Share(sum(&BenchSample::weight_bytes), sum(&BenchSample::decode_seconds));
    if (weight_rate.has_value()) {
      figures.weight_gbps = *weight_rate / 1e9;
      figures.read_bandwidth_share = Share(*weight_rate, setting.read_bandwidth.value_or(0));
    }
  }
  const double generated = sum(&BenchSample::generated);
  figures.waits_per_token = Share(sum(&BenchSample::device_waits), generated);
  figures.kernels_per_token = Share(sum(&BenchSample::device_kernels), generated);
  figures.graphs_per_token = Share(sum(&BenchSample::device_graph_launches), generated);
  figures.graph_changes_per_token = Share(sum(&BenchSample::device_graph_changes), generated);
  figures.fork_joins_per_token = Share(sum(&BenchSample::fork_joins), generated);
  figures.fork_join_ms_per_token = Share(1e3 * sum(&BenchSample::fork_join_seconds), generated);
  return figures;
}

Json Optional(const std::optional<double>& value) { return value.has_value() ? Json(*value) : Json(); }

// Returns a cell of the table; empty without a figure.
std::string Cell(const std::optional<double>& value, int decimals, double factor = 1) {
  return value.has_value() ? absl::StrFormat("%.*f", decimals, *value * factor) : "";
}

struct Column {
  const char* title;
  std::function<std::string(const BenchResult&, const BenchSetting&, const Figures&)> cell;
};

const std::vector<Column>& TableColumns() {
  static const auto* const columns = new std::vector<Column>{
      {"model", [](auto&, auto& s, auto&) { return s.model; }},
      {"size", [](auto&, auto& s, auto&) { return FormatSize(s.model_bytes); }},
      {"device", [](auto&, auto& s, auto&) { return s.device; }},
      {"threads", [](auto&, auto& s, auto&) { return s.threads; }},
      {"preset", [](auto& r, auto&, auto&) { return r.preset; }},
      {"batch", [](auto& r, auto&, auto&) { return absl::StrCat(r.test.batch); }},
      {"test", [](auto& r, auto&, auto&) { return r.test.name(); }},
      {"t/s",
       [](auto&, auto&, auto& f) { return absl::StrFormat("%.2f ± %.2f", f.rate.mean, f.rate.stddev); }},
      {"ttft ms", [](auto&, auto&, auto& f) { return Cell(f.ttft_ms, 1); }},
      {"tpot ms", [](auto&, auto&, auto& f) { return Cell(f.tpot_ms, 2); }},
      {"hit %", [](auto&, auto&, auto& f) { return Cell(f.hit_rate, 1, 100); }},
      {"stall s", [](auto&, auto&, auto& f) { return Cell(f.stall_seconds, 3); }},
      {"SSD GB/s", [](auto&, auto&, auto& f) { return Cell(f.ssd_gbps, 2); }},
      {"link GB/s", [](auto&, auto&, auto& f) { return Cell(f.link_gbps, 2); }},
      {"weights GB/s", [](auto&, auto&, auto& f) { return Cell(f.weight_gbps, 2); }},
      {"of limit %", [](auto&, auto&, auto& f) { return Cell(f.read_bandwidth_share, 1, 100); }},
      {"waits/token", [](auto&, auto&, auto& f) { return Cell(f.waits_per_token, 2); }},
      {"kernels/token", [](auto&, auto&, auto& f) { return Cell(f.kernels_per_token, 0); }},
      {"graphs/token", [](auto&, auto&, auto& f) { return Cell(f.graphs_per_token, 2); }},
      {"joins/token", [](auto&, auto&, auto& f) { return Cell(f.fork_joins_per_token, 0); }},
      {"joins ms/token", [](auto&, auto&, auto& f) { return Cell(f.fork_join_ms_per_token, 2); }},
  };
  return *columns;
}

std::string Markdown(const std::vector<BenchResult>& results, const BenchSetting& setting) {
  std::string text;
  std::string rule;
  for (const Column& column : TableColumns()) {
    absl::StrAppend(&text, "| ", column.title, " ");
    absl::StrAppend(&rule, "| --- ");
  }
  absl::StrAppend(&text, "|\n", rule, "|\n");
  for (const BenchResult& result : results) {
    const Figures figures = FiguresOf(result, setting);
    for (const Column& column : TableColumns()) {
      absl::StrAppend(&text, "| ", column.cell(result, setting, figures), " ");
    }
    absl::StrAppend(&text, "|\n");
  }
  if (setting.read_bandwidth.has_value()) {
    absl::StrAppendFormat(&text, "\nread bandwidth (the limit): %.2f GB/s over %s; %s\n",
                          *setting.read_bandwidth / 1e9, FormatSize(setting.read_bytes), setting.backend);
  }
  return text;
}

std::string CsvField(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return quoted + "\"";
}

// Columns: the members of the objects that are single values, under the same names.
std::string Csv(const std::vector<Json>& objects) {
  std::string text;
  for (const Json& object : objects) {
    std::vector<std::string> titles;
    std::vector<std::string> cells;
    object.ForEachScalar([&](const std::string& key, const std::string& value) {
      titles.push_back(key);
      cells.push_back(CsvField(value));
    });
    if (text.empty()) {
      text = absl::StrCat(absl::StrJoin(titles, ","), "\n");
    }
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace

std::string BenchTest::name() const {
  if (generate == 0) {
    return absl::StrCat("pp", prompt);
  }
  return prompt == 0 ? absl::StrCat("tg", generate) : absl::StrCat("pp", prompt, "+tg", generate);
}

std::vector<BenchTest> PlanTests(const BenchLists& lists) {
  std::vector<BenchTest> tests;
  const auto add = [&tests](int64_t prompt, int64_t generate, int64_t batch) {
    const BenchTest test = {static_cast<uint64_t>(prompt), static_cast<uint64_t>(generate),
                            static_cast<uint64_t>(batch)};
    if (prompt + generate > 0) {
      tests.push_back(test);
    }
  };
  for (const int64_t batch : lists.batches) {
    for (const int64_t prompt : lists.prompts) {
      add(prompt, 0, batch);
    }
    for (const int64_t generate : lists.generates) {
      add(0, generate, batch);
    }
    for (size_t i = 0; i + 1 < lists.pairs.size(); i += 2) {
      add(lists.pairs[i], lists.pairs[i + 1], batch);
    }
  }
  return tests;
}

MeanStddev Summarize(const std::vector<double>& values) {
  MeanStddev result;
  for (const double value : values) {
    result.mean += value / static_cast<double>(values.size());
  }
  double squares = 0;
  for (const double value : values) {
    squares += (value - result.mean) * (value - result.mean);
  }
  if (values.size() > 1) {
    result.stddev = std::sqrt(squares / static_cast<double>(values.size() - 1));
  }
  return result;
}

void AddDepths(const std::vector<DepthSample>& from, int sign, std::vector<DepthSample>* to) {
  for (const DepthSample& sample : from) {
    auto at = std::find_if(to->begin(), to->end(), [&sample](const DepthSample& other) {
      return other.layer == sample.layer && other.depth == sample.depth;
    });
    if (at == to->end()) {
      at = to->insert(at, DepthSample{sample.layer, sample.depth});
    }
    const auto add = [sign](uint64_t more, uint64_t* sum) { *sum = sign < 0 ? *sum - more : *sum + more; };
    add(sample.predicted, &at->predicted);
    add(sample.right, &at->right);
    add(sample.wanted, &at->wanted);
  }
}

Json ResultJson(const BenchResult& result, const BenchSetting& setting) {
  const Figures figures = FiguresOf(result, setting);
  Json json = Json::Object();
  json.Set("test", result.test.name())
      .Set("preset", result.preset)
      .Set("batch", result.test.batch)
      .Set("avg_ts", figures.rate.mean)
      .Set("stddev_ts", figures.rate.stddev)
      .Set("samples_ts", figures.rates)
      .Set("ttft_ms", figures.ttft_ms)
      .Set("tpot_ms", Optional(figures.tpot_ms))
      .Set("hit_rate", Optional(figures.hit_rate))
      .Set("predictor_precision", Optional(figures.precision))
      .Set("predictor_recall", Optional(figures.recall))
      .Set("stall_seconds", figures.stall_seconds)
      .Set("link_gbps", figures.link_gbps)
      .Set("ssd_gbps", figures.ssd_gbps)
      .Set("read_bandwidth_share", Optional(figures.read_bandwidth_share))
      .Set("weight_gbps", Optional(figures.weight_gbps))
      .Set("read_bandwidth_gbps",
           setting.read_bandwidth.has_value() ? Json(*setting.read_bandwidth / 1e9) : Json())
      .Set("read_bandwidth_bytes", setting.read_bandwidth.has_value() ? Json(setting.read_bytes) : Json())
      .Set("device_waits_per_token", Optional(figures.waits_per_token))
      .Set("device_kernels_per_token", Optional(figures.kernels_per_token))
      .Set("device_graph_launches_per_token", Optional(figures.graphs_per_token))
      .Set("device_graph_changes_per_token", Optional(figures.graph_changes_per_token))
      .Set("fork_joins_per_token", Optional(figures.fork_joins_per_token))
      .Set("fork_join_ms_per_token", Optional(figures.fork_join_ms_per_token))
      .Set("n_prompt", result.test.prompt)
      .Set("n_gen", result.test.generate)
      .Set("avg_ns", static_cast<uint64_t>(figures.nanoseconds.mean))
      .Set("stddev_ns", static_cast<uint64_t>(figures.nanoseconds.stddev))
      .Set("samples_ns", figures.samples_ns)
      .Set("model", setting.model)
      .Set("model_id", setting.model_id)
      .Set("model_size", setting.model_bytes)
      .Set("device", setting.device)
      .Set("backend", setting.backend)
      .Set("threads", setting.threads)
      .Set("version", setting.version);
  if (result.explained.has_value()) {
    json.Set("explain", *result.explained);
  }
  return json;
}

absl::StatusOr<BenchFormat> BenchFormatFromName(const std::string& name) {
  static constexpr std::pair<const char*, BenchFormat> kFormats[] = {{"md", BenchFormat::kMarkdown},
                                                                     {"json", BenchFormat::kJson},
                                                                     {"csv", BenchFormat::kCsv},
                                                                     {"jsonl", BenchFormat::kJsonLines}};
  for (const auto& [word, format] : kFormats) {
    if (name == word) {
      return format;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is none of md|json|csv|jsonl"));
}

std::string FormatObjects(const std::vector<Json>& objects, BenchFormat format) {
  if (format == BenchFormat::kCsv) {
    return Csv(objects);
  }
  Json all = Json::Array();
  std::string lines;
  for (const Json& object : objects) {
    absl::StrAppend(&lines, object.Dump(), "\n");
    all.Append(object);
  }
  return format == BenchFormat::kJson ? absl::StrCat(all.Dump(2), "\n") : lines;
}

std::string FormatResults(const std::vector<BenchResult>& results, const BenchSetting& setting,
                          BenchFormat format) {
  if (format == BenchFormat::kMarkdown) {
    return Markdown(results, setting);
  }
  std::vector<Json> objects;
  for (const BenchResult& result : results) {
    objects.push_back(ResultJson(result, setting));
  }
  return FormatObjects(objects, format);
}

}  // namespace sluice::cli
