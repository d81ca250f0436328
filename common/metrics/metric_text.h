// MetricText: writes Prometheus' text format (version 0.0.4), family by family.
//
// Thread safety: thread-compatible; a plain builder.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

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

}  // namespace sluice
