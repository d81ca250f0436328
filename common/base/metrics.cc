#include "common/base/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

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

const std::array<double, 17> kLatencyBounds = {50e-6,  100e-6, 250e-6, 500e-6, 1e-3,   2.5e-3,
                                               5e-3,   10e-3,  25e-3,  50e-3,  100e-3, 250e-3,
                                               500e-3, 1.0,    2.5,    5.0,    10.0};

Histogram::Histogram(std::span<const double> bounds) : bounds_count_(std::min(bounds.size(), kMaxBounds)) {
  std::copy_n(bounds.begin(), bounds_count_, bounds_.begin());
}

void Histogram::Observe(double value) {
  size_t bucket = 0;
  // NaN is below no bound; it is counted in the last bucket and so not lost.
  while (bucket < bounds_count_ && !(value <= bounds_[bucket])) {
    ++bucket;
  }
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramData Histogram::Read() const {
  HistogramData data;
  data.bounds.assign(bounds_.begin(), bounds_.begin() + static_cast<ptrdiff_t>(bounds_count_));
  for (size_t i = 0; i <= bounds_count_; ++i) {
    data.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  data.sum = sum_.load(std::memory_order_relaxed);
  return data;
}

void MetricRegistry::Add(const std::string& name, const std::string& help, MetricType type, Series series) {
  auto found = std::find_if(families_.begin(), families_.end(),
                            [&](const Family& family) { return family.name == name; });
  if (found == families_.end()) {
    families_.push_back(Family{name, help, type, {}});
    found = std::prev(families_.end());
  }
  found->series.push_back(std::move(series));
}

Counter* MetricRegistry::AddCounter(const std::string& name, const std::string& help, MetricLabels labels) {
  MutexLock lock(&mutex_);
  // A deque never moves its elements, so the pointer holds for the registry's life.
  Counter* counter = &counters_.emplace_back();
  Add(name, help, MetricType::kCounter,
      {std::move(labels),
       [counter](MetricText* text, const MetricLabels& own) { text->Sample(own, counter->value()); }});
  return counter;
}

Histogram* MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        std::span<const double> bounds, MetricLabels labels) {
  MutexLock lock(&mutex_);
  Histogram* histogram = &histograms_.emplace_back(bounds);
  Add(name, help, MetricType::kHistogram,
      {std::move(labels),
       [histogram](MetricText* text, const MetricLabels& own) { text->Buckets(own, histogram->Read()); }});
  return histogram;
}

std::string MetricRegistry::Text() const {
  MetricText text;
  MutexLock lock(&mutex_);
  for (const Family& family : families_) {
    text.Family(family.name, family.type, family.help);
    for (const Series& series : family.series) {
      series.write(&text, series.labels);
    }
  }
  return text.Take();
}

}  // namespace sluice
