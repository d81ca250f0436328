#include "common/metrics/metric_text.h"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// HELP lines keep quotes as they are; label values escape them.
std::string Escape(const std::string& text, bool quotes) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\\\";
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '"' && quotes) {
      escaped += "\\\"";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", value);
  return text;
}

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace

uint64_t HistogramData::count() const { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }

// The upper bound of the bucket that holds the quantile. Values above the last bound count as that bound,
// since their real size is unknown.
double HistogramData::Quantile(double q) const {
  const double target_count = q * static_cast<double>(count());
  if (count() == 0 || bounds.empty()) {
    return 0;
  }
  uint64_t seen = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    seen += counts[i];
    if (seen != 0 && static_cast<double>(seen) >= target_count) {
      return bounds[i];
    }
  }
  return bounds.back();
}

void MetricText::Family(const std::string& name, MetricType type, const std::string& help) {
  family_ = name;
  absl::StrAppend(&text_, "# HELP ", name, " ", Escape(help, /*quotes=*/false), "\n# TYPE ", name, " ",
                  TypeName(type), "\n");
}

void MetricText::Sample(const MetricLabels& labels, double value) { Line("", labels, Number(value)); }

void MetricText::Buckets(const MetricLabels& labels, const HistogramData& data) {
  MetricLabels bucket = labels;
  bucket.emplace_back("le", "");
  // Prometheus wants cumulative buckets and a _count equal to the last of them. All come from the same
  // snapshot, because the histogram keeps counting during the scrape.
  uint64_t below = 0;
  for (size_t i = 0; i < data.counts.size(); ++i) {
    below += data.counts[i];
    bucket.back().second = i < data.bounds.size() ? Number(data.bounds[i]) : "+Inf";
    Line("_bucket", bucket, std::to_string(below));
  }
  Line("_sum", labels, Number(data.sum));
  Line("_count", labels, std::to_string(below));
}

void MetricText::Line(const char* suffix, const MetricLabels& labels, const std::string& value) {
  absl::StrAppend(&text_, family_, suffix);
  const char* separator = "{";
  for (const auto& [name, label] : labels) {
    absl::StrAppend(&text_, separator, name, "=\"", Escape(label, /*quotes=*/true), "\"");
    separator = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? " " : "} ", value, "\n");
}

}  // namespace sluice
