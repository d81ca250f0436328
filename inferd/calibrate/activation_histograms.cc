#include "inferd/calibrate/activation_histograms.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/status.h"

namespace sluice::inferd {
namespace {

constexpr int kFloatMantissa = 23;
constexpr int kFloatBias = 127;
constexpr int kMinMantissaBits = 4;
constexpr int kMaxMantissaBits = 10;
constexpr double kRounding = 1e-15;  // relative error of a product of two doubles

}  // namespace

int ActivationHistograms::MantissaBitsFor(uint64_t tables, uint64_t budget_bytes) {
  int bits = kMaxMantissaBits;
  while (bits > kMinMantissaBits && (tables * kExponents * sizeof(uint32_t) << bits) > budget_bytes) --bits;
  return bits;
}

// Bucket index: exponent and first bits of the mantissa, so a value's bucket is a shift of its bits, and
// every bucket has the same relative width.
ActivationHistograms::ActivationHistograms(uint64_t tables, int mantissa_bits)
    : shift_(kFloatMantissa - mantissa_bits),
      lowest_bits_(int64_t{kFloatBias + kLowestExponent} << kFloatMantissa),
      buckets_(static_cast<uint32_t>(kExponents) << mantissa_bits),
      counts_(tables * buckets_) {}

float ActivationHistograms::Edge(uint64_t bucket) const {
  if (bucket == 0) return 0;  // the first bucket also holds all smaller values
  return std::bit_cast<float>(static_cast<uint32_t>(lowest_bits_ + (static_cast<int64_t>(bucket) << shift_)));
}

uint64_t ActivationHistograms::Count(uint64_t table) const {
  const auto begin = counts_.begin() + static_cast<ptrdiff_t>(table * buckets_);
  return std::accumulate(begin, begin + buckets_, uint64_t{0});
}

bool ActivationHistograms::Quantiles(uint64_t first, uint64_t count, absl::Span<const double> shares,
                                     absl::Span<float> points) const {
  std::vector<uint64_t> tables(count);
  std::iota(tables.begin(), tables.end(), first);
  return Quantiles(tables, shares, points);
}

bool ActivationHistograms::Quantiles(absl::Span<const uint64_t> tables, absl::Span<const double> shares,
                                     absl::Span<float> points) const {
  std::vector<uint64_t> sums(buckets_);
  for (const uint64_t table : tables) {
    const uint32_t* counts = counts_.data() + table * buckets_;
    for (uint32_t b = 0; b < buckets_; ++b) sums[b] += counts[b];
  }
  const uint64_t total = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  if (total == 0) return false;
  Place(sums, total, shares, points);
  return true;
}

void ActivationHistograms::Place(absl::Span<const uint64_t> sums, uint64_t total,
                                 absl::Span<const double> shares, absl::Span<float> points) const {
  uint64_t bucket = 0;
  uint64_t before = 0;  // number of values in lower buckets
  for (size_t i = 0; i < points.size(); ++i) {
    if (shares[i] == 0) {
      points[i] = 0;
      continue;
    }
    // The product of, say, 0.7 and a multiple of ten may be rounded slightly above the exact whole number,
    // and ceil() would return one too many.
    const double place = shares[i] * static_cast<double>(total) * (1 - kRounding);
    const uint64_t rank = std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(place)), 1, total);
    while (before + sums[bucket] < rank) before += sums[bucket++];
    const double low = Edge(bucket);
    const double high = Edge(bucket + 1);
    const double share = (static_cast<double>(rank - before) - 0.5) / static_cast<double>(sums[bucket]);
    points[i] = static_cast<float>(low + share * (high - low));
  }
}

// Most counts are zero, so only each table's range between its first and last used bucket is stored: {first,
// one past the last, counts}.
void ActivationHistograms::Save(std::string* out) const {
  AppendValue(uint64_t{counts_.size()}, out);
  for (size_t first = 0; first < counts_.size(); first += buckets_) {
    uint32_t low = 0;
    uint32_t high = buckets_;
    while (low < buckets_ && counts_[first + low] == 0) ++low;
    while (high > low && counts_[first + high - 1] == 0) --high;
    AppendValue(low, out);
    AppendValue(high, out);
    out->append(reinterpret_cast<const char*>(counts_.data() + first + low), (high - low) * sizeof(uint32_t));
  }
}

absl::Status ActivationHistograms::Load(ByteReader* reader) {
  uint64_t size = 0;
  RETURN_IF_ERROR(reader->Take(&size));
  if (size != counts_.size()) return reader->Damaged("histograms of another size");
  std::vector<uint32_t> used;
  for (size_t first = 0; first < counts_.size(); first += buckets_) {
    uint32_t low = 0;
    uint32_t high = 0;
    RETURN_IF_ERROR(reader->Take(&low));
    RETURN_IF_ERROR(reader->Take(&high));
    if (low > high || high > buckets_) return reader->Damaged("a histogram that cannot be");
    RETURN_IF_ERROR(reader->TakeMany(high - low, &used));
    std::copy(used.begin(), used.end(), counts_.begin() + static_cast<ptrdiff_t>(first + low));
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
