#include "common/metrics/metrics.h"

#include <algorithm>
#include <utility>

namespace sluice {

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

Gauge* MetricRegistry::AddGauge(const std::string& name, const std::string& help, MetricLabels labels) {
  MutexLock lock(&mutex_);
  Gauge* gauge = &gauges_.emplace_back();
  Add(name, help, MetricType::kGauge, {std::move(labels), [gauge](MetricText* text, const MetricLabels& own) {
                                         text->Sample(own, gauge->value());
                                       }});
  return gauge;
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

void MetricRegistry::AddCollector(std::function<void(MetricText*)> collector) {
  MutexLock lock(&mutex_);
  collectors_.push_back(std::move(collector));
}

std::string MetricRegistry::Text() const {
  MetricText text;
  std::vector<std::function<void(MetricText*)>> collectors;
  {
    MutexLock lock(&mutex_);
    for (const Family& family : families_) {
      text.Family(family.name, family.type, family.help);
      for (const Series& series : family.series) {
        series.write(&text, series.labels);
      }
    }
    // Collectors run without the lock: they take locks of their own and may add metrics.
    collectors = collectors_;
  }
  for (const auto& collector : collectors) {
    collector(&text);
  }
  return text.Take();
}

}  // namespace sluice
