// Distributions of |a| of many tables at once, in bounded memory: counts by the floats' leading bits.
//
// A value's bucket is its exponent and the first m bits of its mantissa, so buckets are 2^-m wide relative to
// the value (m = 10 for small models: 0.1 %). A quantile is found by its exact rank and placed within the
// bucket by that rank, as if the bucket's values were spread evenly: it lies within half a bucket of the true
// order statistic, and where the bucket is well filled (millions of values) the rank is off by about 1e-6 of
// all values, a hundred times less than the sample's own noise. Values below 2^-30 share the first bucket,
// values from 2^34 up the last.
//
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/profile/profile_file.h"

namespace sluice::inferd {

class ActivationHistograms {
 public:
  static constexpr int kLowestExponent = -30;
  static constexpr int kExponents = 64;

  // Maximum number of mantissa bits, 4..10, whose tables fit `budget_bytes`.
  static int MantissaBitsFor(uint64_t tables, uint64_t budget_bytes);

  ActivationHistograms(uint64_t tables, int mantissa_bits);

  void Add(uint64_t table, float value) { ++counts_[table * buckets_ + BucketOf(value)]; }

  // Computes for each of `shares`, ascending in 0..1, the quantile of the values of tables [first, first +
  // count) together: the ceil(share * n)-th smallest, 0 for share 0. False, and nothing written, if they hold
  // no value. REQUIRES: as many points as shares.
  bool Quantiles(uint64_t first, uint64_t count, absl::Span<const double> shares,
                 absl::Span<float> points) const;
  // The same for any tables, given by index.
  bool Quantiles(absl::Span<const uint64_t> tables, absl::Span<const double> shares,
                 absl::Span<float> points) const;

  uint64_t Count(uint64_t table) const;
  // True if the table has a value that is infinite, NaN or at least 2^34.
  bool HasHugeValue(uint64_t table) const { return counts_[table * buckets_ + buckets_ - 1] > 0; }

  void Save(std::string* out) const;
  absl::Status Load(ByteReader* reader);

 private:
  uint32_t BucketOf(float value) const {
    const int64_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    const int64_t bucket = (bits - lowest_bits_) >> shift_;
    return bucket < 0 ? 0 : bucket >= buckets_ ? buckets_ - 1 : static_cast<uint32_t>(bucket);
  }
  float Edge(uint64_t bucket) const;
  void Place(absl::Span<const uint64_t> sums, uint64_t total, absl::Span<const double> shares,
             absl::Span<float> points) const;

  const int shift_;
  const int64_t lowest_bits_;
  const uint32_t buckets_;
  std::vector<uint32_t> counts_;  // [tables, buckets_]
};

}  // namespace sluice::inferd
