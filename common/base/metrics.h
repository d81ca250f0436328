// Metrics: counters and histograms that hot paths write without locks, their registry, and Prometheus' text
// format. Values that are counted elsewhere, gauges among them, are written as text by their owners.
//
// Thread safety: stated at each class.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace sluice {

// MetricText: writes Prometheus' text format (version 0.0.4), family by family.
//
// Thread safety: thread-compatible; a plain builder.

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Snapshot of a histogram.
struct HistogramData {
  std::vector<double> bounds;    // upper bounds, ascending, without +Inf
  std::vector<uint64_t> counts;  // of each bucket alone, +Inf's last: bounds.size() + 1
  double sum = 0;

  uint64_t count() const;
  // An upper bound of the value below which the share `q` (0..1) of the observations lies: the bound of the
  // bucket it falls into; that of the last finite bucket for +Inf's. 0 without observations.
  double Quantile(double q) const;
};

class MetricText {
 public:
  // Begins a family: a name of [a-zA-Z_:][a-zA-Z0-9_:]* and its help line. Its samples follow.
  void Family(const std::string& name, MetricType type, const std::string& help);

  void Sample(const MetricLabels& labels, double value);
  template <std::integral T>
  void Sample(const MetricLabels& labels, T value) {
    Line("", labels, std::to_string(value));
  }
  // A histogram's _bucket, _sum and _count lines.
  void Buckets(const MetricLabels& labels, const HistogramData& data);

  // A family of one series without labels.
  template <typename T>
  void One(const std::string& name, MetricType type, const std::string& help, T value) {
    Family(name, type, help);
    Sample({}, value);
  }

  std::string Take() { return std::move(text_); }

 private:
  void Line(const char* suffix, const MetricLabels& labels, const std::string& value);

  std::string family_;
  std::string text_;
};

// Counters and histograms that a hot path writes and a scrape reads, and the registry of their names.
//
// Writing an instrument is a few relaxed atomic operations: no lock, no allocation. A histogram that is read
// during a write may have an observation in its buckets but not yet in its sum; its count is always the sum
// of the buckets.
//
// Thread safety: thread-safe; instruments may be written and read from any thread. Registration and Text()
// take the registry's lock, which no writer touches.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Histogram {
 public:
  static constexpr size_t kMaxBounds = 31;

  // Upper bounds of the buckets, ascending, followed by +Inf. Bounds beyond kMaxBounds are ignored.
  explicit Histogram(std::span<const double> bounds);
  Histogram(std::initializer_list<double> bounds)
      : Histogram(std::span<const double>(bounds.begin(), bounds.size())) {}

  void Observe(double value);
  HistogramData Read() const;

 private:
  size_t bounds_count_ = 0;
  std::array<double, kMaxBounds> bounds_ = {};
  std::array<std::atomic<uint64_t>, kMaxBounds + 1> counts_ = {};  // the last used one is +Inf's
  std::atomic<double> sum_{0};
};

// 50 us to 10 s, in seconds: for reads, queues and copies.
extern const std::array<double, 17> kLatencyBounds;

// Families of instruments, written in the order of their first registration.
class MetricRegistry {
 public:
  // Registering a further instrument of a family adds a series to it; `labels` tell them apart. The pointers
  // live as long as the registry.
  Counter* AddCounter(const std::string& name, const std::string& help, MetricLabels labels = {});
  Histogram* AddHistogram(const std::string& name, const std::string& help, std::span<const double> bounds,
                          MetricLabels labels = {});

  // All metrics in Prometheus' text format, version 0.0.4.
  std::string Text() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Series {
    MetricLabels labels;
    std::function<void(MetricText*, const MetricLabels&)> write;
  };
  struct Family {
    std::string name;
    std::string help;
    MetricType type;
    std::vector<Series> series;
  };
  void Add(const std::string& name, const std::string& help, MetricType type, Series series)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::deque<Counter> counters_ ABSL_GUARDED_BY(mutex_);  // deques: addresses stay
  std::deque<Histogram> histograms_ ABSL_GUARDED_BY(mutex_);
  std::vector<Family> families_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
