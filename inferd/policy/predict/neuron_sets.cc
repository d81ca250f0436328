#include "inferd/policy/predict/neuron_sets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

namespace sluice::inferd {
namespace {

constexpr size_t kSetWordBits = 64;
// Number of guesses at the last selected value before the interval is only halved.
constexpr int kMaxInterpolations = 8;

// Integers in the order of the values; -0 is below 0, and a NaN of positive sign above everything.
int32_t OrderedBits(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

float ValueOf(int64_t order) {
  const auto bits = static_cast<int32_t>(order);
  return std::bit_cast<float>(bits ^ ((bits >> 31) & 0x7fffffff));
}

// Packs whole words at a time: bytes of 0 and 1 by vectors, then eight of them into a byte by one product, in
// which byte i meets bit 63 - 7 (i + 1) and nothing is carried.
template <class Takes>
void Mark(absl::Span<const float> values, absl::Span<uint64_t> chosen, Takes takes) {
  constexpr uint64_t kGather = 0x0102040810204080;
  for (size_t word = 0; word < chosen.size(); ++word) {
    const auto part = values.subspan(std::min(values.size(), word * kSetWordBits), kSetWordBits);
    uint64_t bits = 0;
    if (part.size() == kSetWordBits) {
      std::array<uint8_t, kSetWordBits> taken;
      for (size_t i = 0; i < kSetWordBits; ++i) taken[i] = takes(part[i]);
      for (size_t i = 0; i < kSetWordBits; i += 8) {
        uint64_t eight = 0;
        std::memcpy(&eight, &taken[i], sizeof(eight));
        bits |= (eight * kGather >> 56) << i;
      }
    } else {
      for (size_t i = 0; i < part.size(); ++i) bits |= uint64_t{takes(part[i])} << i;
    }
    chosen[word] = bits;
  }
}

uint32_t CountFrom(absl::Span<const float> values, int32_t order) {
  uint32_t count = 0;
  for (const float value : values) count += OrderedBits(value) >= order ? 1 : 0;
  return count;
}

double MeanOf(absl::Span<const float> values) {
  std::array<float, 16> sums{};
  size_t i = 0;
  for (; i + sums.size() <= values.size(); i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += values[i + lane];
  }
  for (; i < values.size(); ++i) sums[0] += values[i];
  double sum = 0;
  for (const float lane : sums) sum += lane;
  return sum / static_cast<double>(values.size());
}

// The largest order that at least `wanted` values reach, and the number of values that reach it.
struct Least {
  int64_t order = 0;
  uint32_t count = 0;
};

// REQUIRES: 0 < wanted. Counting runs by vectors, and none of its steps depends on unpredictable comparisons;
// a selection by comparing took half of FloE's own time, one by digits a third. So few counts must do: the
// sizes of a lead's values fall off about as an exponential of their mean, which gives the guesses until one
// lies on either side (a little beyond the last value, so that the next one does); from then on they lie
// between the two nearest counts. Wrong guesses cost time only.
Least LeastOf(absl::Span<const float> values, uint32_t wanted) {
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  constexpr int64_t kBeyond = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  Least least{kLowest, static_cast<uint32_t>(values.size())};
  Least above{kBeyond, 0};
  const double mean = MeanOf(values);
  double guess = -mean * std::log(static_cast<double>(wanted) / static_cast<double>(values.size()));
  for (int pass = 0; above.order - least.order > 1 && least.count != wanted; ++pass) {
    const int64_t guessed = OrderedBits(static_cast<float>(guess));
    const bool inside = pass < kMaxInterpolations && guessed > least.order && guessed < above.order;
    const int64_t order = inside ? guessed : least.order + (above.order - least.order) / 2;
    const uint32_t count = CountFrom(values, static_cast<int32_t>(order));
    (count >= wanted ? least : above) = {order, count};
    if (least.order == kLowest || above.order == kBeyond) {
      const double aim = count >= wanted ? 0.95 * wanted - 0.5 : 1.05 * wanted + 0.5;
      guess = ValueOf(order) + mean * std::log(std::max(count, 1u) / std::max(aim, 0.5));
    } else {
      const double low = ValueOf(least.order);
      guess = low + (ValueOf(above.order) - low) * (least.count - wanted + 0.5) / (least.count - above.count);
    }
  }
  return least;
}

}  // namespace

void ChooseByThreshold(absl::Span<const float> values, float threshold, absl::Span<uint64_t> chosen) {
  Mark(values, chosen, [threshold](float value) { return value >= threshold; });
}

void ChooseByShare(absl::Span<const float> values, double share, absl::Span<uint64_t> chosen) {
  const double all = static_cast<double>(values.size());
  const auto wanted = static_cast<uint32_t>(std::clamp(std::ceil(share * all - 1e-9), 0.0, all));
  if (wanted == 0) {
    std::fill(chosen.begin(), chosen.end(), 0);
    return;
  }
  const Least found = LeastOf(values, wanted);
  const auto least = static_cast<int32_t>(found.order);
  if (found.count == wanted) {
    Mark(values, chosen, [least](float value) { return OrderedBits(value) >= least; });
    return;
  }
  Mark(values, chosen, [least](float value) { return OrderedBits(value) > least; });
  uint32_t left = wanted;
  for (const uint64_t word : chosen) left -= static_cast<uint32_t>(std::popcount(word));
  for (size_t i = 0; left > 0; ++i) {
    if (OrderedBits(values[i]) == least) {
      chosen[i / kSetWordBits] |= uint64_t{1} << i % kSetWordBits;
      --left;
    }
  }
}

}  // namespace sluice::inferd
