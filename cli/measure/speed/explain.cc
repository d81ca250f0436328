#include "cli/measure/speed/explain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::cli {
namespace {

const char* NameOf(Bound bound) {
  switch (bound) {
    case Bound::kMemory:
      return "memory";
    case Bound::kInstructions:
      return "instructions";
    default:
      return "-";
  }
}

void SetBound(const ExplainRates& rates, ExplainLine* line) {
  const double product_rate = line->part == "experts" ? rates.expert_products : rates.products;
  const double reading = rates.read > 0 ? line->bytes / rates.read : 0;
  const double computing = product_rate > 0 ? line->products / product_rate : 0;
  line->bound_seconds = std::max(reading, computing);
  if (line->bound_seconds > 0) {
    line->bound = reading >= computing ? Bound::kMemory : Bound::kInstructions;
  }
}

double Reached(const ExplainLine& line) { return line.seconds > 0 ? line.bound_seconds / line.seconds : 0; }

std::string LineText(const ExplainLine& line) {
  std::string text =
      absl::StrFormat("  %-10s %9.3f %6.1f %%", line.part, 1e3 * line.seconds, 100 * line.share);
  if (line.bytes > 0 || line.products > 0) {
    absl::StrAppendFormat(&text, " %9.2f %9.3f", line.bytes / 1e6, line.products / 1e9);
  }
  if (line.bound != Bound::kNone) {
    absl::StrAppendFormat(&text, "  %-12s %9.3f %6.1f %%", NameOf(line.bound), 1e3 * line.bound_seconds,
                          100 * Reached(line));
  }
  return text + "\n";
}

}  // namespace

ExplainRows RowsOf(const BenchTest& test, uint32_t experts, uint32_t top_k, uint32_t chunk) {
  ExplainRows rows;
  const uint64_t step = test.generate > 0 ? test.batch : std::min<uint64_t>(test.prompt * test.batch, chunk);
  rows.step = static_cast<uint32_t>(std::clamp<uint64_t>(step, 1, 512));
  if (experts > 0) {
    rows.expert = std::clamp(rows.step * top_k / experts, 1u, rows.step);
  }
  return rows;
}

Explanation Explain(const BenchResult& result, const ExplainRates& rates, const ExplainRows& rows) {
  Explanation out;
  out.rates = rates;
  out.rows = rows;
  double tokens = 0;
  double busy = 0;
  double stall = 0;
  std::vector<PartSample> parts;
  for (const BenchSample& sample : result.samples) {
    tokens += static_cast<double>(sample.tokens);
    busy += sample.busy_seconds;
    stall += sample.stall_seconds;
    parts.resize(std::max(parts.size(), sample.parts.size()));
    for (size_t i = 0; i < sample.parts.size(); ++i) {
      parts[i].part = sample.parts[i].part;
      parts[i].seconds += sample.parts[i].seconds;
      parts[i].bytes += sample.parts[i].bytes;
      parts[i].products += sample.parts[i].products;
    }
  }
  if (parts.empty() || tokens <= 0 || busy <= 0) {
    return out;
  }
  out.seconds = busy / tokens;
  double rest = busy - stall;
  const auto line_of = [&](const std::string& part, double seconds) {
    ExplainLine line;
    line.part = part;
    line.seconds = seconds / tokens;
    line.share = seconds / busy;
    return line;
  };
  for (const PartSample& part : parts) {
    ExplainLine line = line_of(part.part, part.seconds);
    line.bytes = static_cast<double>(part.bytes) / tokens;
    line.products = static_cast<double>(part.products) / tokens;
    SetBound(rates, &line);
    out.lines.push_back(std::move(line));
    rest -= part.seconds;
  }
  out.lines.push_back(line_of("waits", stall));
  out.lines.push_back(line_of("between", std::max(0.0, rest)));
  return out;
}

std::string ExplainText(const BenchResult& result, const Explanation& explanation) {
  std::string text = absl::StrCat(result.preset, " ", result.test.name(), " x ", result.test.batch, ": ");
  if (explanation.lines.empty()) {
    return text + "this device does not tell what its parts took\n";
  }
  const ExplainRates& rates = explanation.rates;
  absl::StrAppendFormat(&text, "%.3f ms a token", 1e3 * explanation.seconds);
  if (rates.read > 0) {
    absl::StrAppendFormat(&text, ", memory read at %.1f GB/s", rates.read / 1e9);
  }
  if (rates.products > 0) {
    absl::StrAppendFormat(&text,
                          ", %.1f (dense) and %.1f (experts) billion multiply-adds a second from caches with "
                          "%d and %d rows",
                          rates.products / 1e9, rates.expert_products / 1e9, explanation.rows.step,
                          explanation.rows.expert);
  }
  absl::StrAppend(&text,
                  "\n  part              ms    share        MB       GMA  bound by            ms  reached\n");
  for (const ExplainLine& line : explanation.lines) {
    absl::StrAppend(&text, LineText(line));
  }
  return text;
}

Json ExplainJson(const Explanation& explanation) {
  const auto optional = [](bool known, double value) { return known ? Json(value) : Json(); };
  Json lines = Json::Array();
  for (const ExplainLine& line : explanation.lines) {
    const bool bound = line.bound != Bound::kNone;
    Json json = Json::Object();
    json.Set("part", line.part)
        .Set("ms", 1e3 * line.seconds)
        .Set("share", line.share)
        .Set("bytes", line.bytes)
        .Set("products", line.products)
        .Set("bound", bound ? Json(NameOf(line.bound)) : Json())
        .Set("bound_ms", optional(bound, 1e3 * line.bound_seconds))
        .Set("reached", optional(bound, Reached(line)));
    lines.Append(std::move(json));
  }
  const ExplainRates& rates = explanation.rates;
  Json json = Json::Object();
  json.Set("ms_per_token", 1e3 * explanation.seconds)
      .Set("read_bytes_per_second", optional(rates.read > 0, rates.read))
      .Set("products_per_second", optional(rates.products > 0, rates.products))
      .Set("expert_products_per_second", optional(rates.expert_products > 0, rates.expert_products))
      .Set("rows", explanation.rows.step)
      .Set("rows_per_expert", explanation.rows.expert)
      .Set("parts", std::move(lines));
  return json;
}

}  // namespace sluice::cli
