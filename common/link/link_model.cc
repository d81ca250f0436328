#include "common/link/link_model.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr double kMaxBytesPerSecond = 1e15;
constexpr double kMaxLatencyNanos = 10e9;

// Limits keep products and sums of nanoseconds within 64 bits for any input; NaN counts as "no limit",
// written as 0.
double Within(double value, double high) { return std::isnan(value) ? 0 : std::clamp(value, 0.0, high); }

}  // namespace

LinkRate MakeLinkRate(double gbps, double latency_us) {
  LinkRate rate;
  rate.bytes_per_second = static_cast<uint64_t>(std::llround(Within(gbps * 1e9, kMaxBytesPerSecond)));
  rate.latency_nanos = std::llround(Within(latency_us * 1e3, kMaxLatencyNanos));
  return rate;
}

double LinkModel::Nanos(uint64_t bytes) const {
  return rate_.bytes_per_second == 0
             ? 0
             : static_cast<double>(bytes) * 1e9 / static_cast<double>(rate_.bytes_per_second);
}

int64_t LinkModel::Book(uint64_t bytes, int64_t ready_nanos, int64_t now_nanos) {
  const int64_t submitted = std::clamp(ready_nanos, now_nanos - kMaxBackdateNanos, now_nanos);
  const int64_t first = submitted + rate_.latency_nanos;
  // The link was idle, so its state restarts; the fraction of a nanosecond belongs to earlier transfers.
  if (first > free_nanos_) {
    free_nanos_ = first;
    fraction_ = 0;
  }
  const double taken = Nanos(bytes) + fraction_;
  // Carries the fraction to the next transfer, else many small transfers would each gain up to a nanosecond
  // and the modelled rate would be too high.
  const double whole = std::floor(taken);
  free_nanos_ += static_cast<int64_t>(whole);
  fraction_ = taken - whole;
  return free_nanos_;
}

}  // namespace sluice
