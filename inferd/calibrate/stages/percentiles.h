// The distribution of a stage's measurements in the form stored in profiles.
//
// Thread safety: a pure function.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sluice::inferd {

// Returns the values at `points` evenly spaced shares of `sorted` (101 points: 0, 1, .. 100 %): the smallest
// value that at least this share of the values does not exceed. Zeros if there are no values. REQUIRES:
// `sorted` ascends; `points` > 1.
template <typename T>
std::vector<double> Percentiles(const std::vector<T>& sorted, size_t points) {
  std::vector<double> values(points, 0.0);
  for (size_t i = 0; i < points && !sorted.empty(); ++i) {
    const double rank = std::ceil(static_cast<double>(i * sorted.size()) / static_cast<double>(points - 1));
    values[i] = sorted[std::max<size_t>(static_cast<size_t>(rank), 1) - 1];
  }
  return values;
}

}  // namespace sluice::inferd
