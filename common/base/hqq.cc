#include "common/base/hqq.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/vector_clones.h"

namespace sluice {
namespace {

constexpr int kLanes = kQuantLanes;
constexpr float kF16Max = 65504.0f;
constexpr float kF16SmallestNormal = 0x1p-14f;
constexpr float kF16Step = 0x1p-24f;  // between subnormal halves

// The proximal solver's parameters, as in the reference package's default.
constexpr int kIterations = 20;
constexpr float kBeta = 10.0f;
constexpr float kKappa = 1.01f;
constexpr float kNormMinusOne = -0.3f;  // p - 1 with p = 0.7
// Errors of at most this shrink to 0 in every iteration: x <= x^-0.3 / beta up to x = beta^(-1 / 1.3), 0.147
// for the last beta of 12.1. Weights of language models hardly ever leave larger ones.
constexpr float kShrinksToZero = 0.14f;
// A sum of squared errors below this bound contains no larger error: neither squares nor sums round across
// it.
constexpr float kSumShrinksToZero = kShrinksToZero * kShrinksToZero;

// Weights padded to whole lanes with zeros, and the same over the scale; `mask` is 1 for the last lanes' real
// values and 0 for padding.
struct alignas(64) Block {
  float weight[kMaxQuantGroup];
  float scaled[kMaxQuantGroup];
  float mask[kLanes];
  int whole = 0;   // values in lanes without padding
  int padded = 0;  // values with padding
  float count = 0;
};

struct Range {
  float low;
  float high;
};

// Nearest f16 value (ties to even) as a float; saturates at +-65504.
float RoundToF16(float value) {
  const float limited = std::clamp(value, -kF16Max, kF16Max);
  const float magnitude = std::fabs(limited);
  // Adding and subtracting 2^k * 1.5 * ulp rounds to multiples of ulp; f16 keeps 11 bits, subnormals 2^-24.
  const uint32_t exponent = std::max(std::bit_cast<uint32_t>(magnitude) >> 23, 127u - 14u);
  const float magic = std::bit_cast<float>((exponent + 13) << 23) * 1.5f;
  const float rounded = (magnitude + magic) - magic;
  return std::copysign(rounded, limited);
}

// x^-0.3 for x >= 2^-60 to about 2e-5 relative, which the shrinkage does not notice; only adds and
// multiplies, so that it vectorizes and gives the same bits everywhere.
inline float PowMinusPoint3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u) - 1.5f;
  // log2(1.5 + m) on [-0.5, 0.5): Chebyshev fit of degree 6.
  float log2 = -0.02482598f;
  log2 = log2 * m + 0.04342891f;
  log2 = log2 * m + -0.07068612f;
  log2 = log2 * m + 0.14184874f;
  log2 = log2 * m + -0.32062478f;
  log2 = log2 * m + 0.96181478f;
  log2 = log2 * m + 0.58496268f;
  const float y = (log2 + exponent) * kNormMinusOne;
  const float whole =
      static_cast<float>(static_cast<int32_t>(y + 256.5f) - 256);  // y is within +-40: floor(y + .5)
  const float f = y - whole;
  float power = 0.0013333558f;  // 2^f on [-0.5, 0.5]: Taylor in f ln 2
  power = power * f + 0.0096181291f;
  power = power * f + 0.0555041087f;
  power = power * f + 0.2402265070f;
  power = power * f + 0.6931471806f;
  power = power * f + 1.0f;
  return power * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23);
}

// round() to even of values within +-2^22, without a library call.
inline float RoundEven(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

// The nearest code, as a float; `scaled` is the weight over the scale.
inline float CodeOf(float scaled, float zero, float max_code) {
  return RoundEven(std::min(std::max(scaled + zero, 0.0f), max_code));
}

// One solver iteration: the sum of squared w - w' at `zero`, and that of code - (w - shrunk error) / scale,
// whose mean is the next zero.
struct Iteration {
  float error;
  float zero;
};

struct LaneSums {
  float error[kLanes] = {};
  float zero[kLanes] = {};
};

struct Step {
  float inverse;  // 1 / scale
  float scale;
  float zero;
  float max_code;
  float inverse_beta;
};

// Adds the values of one run of lanes. Without shrinkage the kept error is 0; with shrinkage it is also 0 if
// |w - w'| is below kShrinksToZero, and both give the same bits.
template <bool kShrink, bool kMasked>
SLUICE_ALWAYS_INLINE void Accumulate(const Block& block, int base, const Step& step, LaneSums* sums) {
  for (int i = 0; i < kLanes; ++i) {
    const float weight = block.weight[base + i];
    float scaled = block.scaled[base + i];
    const float code = CodeOf(scaled, step.zero, step.max_code);
    const float residual = weight - (code - step.zero) * step.scale;
    const float magnitude = std::fabs(residual);
    if constexpr (kShrink) {
      const float shrunk =
          std::max(magnitude - step.inverse_beta * PowMinusPoint3(std::max(magnitude, 1e-18f)), 0.0f);
      scaled = (weight - std::copysign(shrunk, residual)) * step.inverse;
    }
    const float mask = kMasked ? block.mask[i] : 1.0f;
    sums->error[i] += magnitude * magnitude * mask;
    sums->zero[i] += (code - scaled) * mask;
  }
}

template <bool kShrink>
SLUICE_ALWAYS_INLINE Iteration Iterate(const Block& block, const Step& step) {
  LaneSums sums;
  for (int base = 0; base < block.whole; base += kLanes) {
    Accumulate<kShrink, false>(block, base, step, &sums);
  }
  if (block.whole != block.padded) Accumulate<kShrink, true>(block, block.whole, step, &sums);
  return {SumOfLanes(LoadLanes(sums.error)), SumOfLanes(LoadLanes(sums.zero))};
}

// The largest |w - w'|.
SLUICE_ALWAYS_INLINE float LargestError(const Block& block, const Step& step) {
  float largest[kLanes] = {};
  for (int base = 0; base < block.padded; base += kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      const float code = CodeOf(block.scaled[base + i], step.zero, step.max_code);
      const float residual = block.weight[base + i] - (code - step.zero) * step.scale;
      largest[i] = std::max(largest[i], std::fabs(residual));
    }
  }
  return MaxOfLanes(LoadLanes(largest));
}

// Half-quadratic quantization: finds the zero that minimises the sum of |w - w'|^0.7 for a fixed scale, by
// alternately shrinking the errors and solving for the zero, starting at `zero`. Returns the zero with the
// least squared error; the search ends with the first iteration that does not improve it.
SLUICE_VECTOR_CLONES
float BestZero(const Block& block, float scale, float zero, float max_code) {
  Step step = {1.0f / scale, scale, zero, max_code, 0};
  float best_zero = zero;
  float best_error = std::numeric_limits<float>::infinity();
  float beta = kBeta;
  for (int i = 0; i < kIterations; ++i) {
    step.inverse_beta = 1.0f / beta;
    Iteration next = Iterate<false>(block, step);
    if (next.error >= kSumShrinksToZero && LargestError(block, step) > kShrinksToZero) {
      next = Iterate<true>(block, step);
    }
    const float error = next.error / block.count;
    if (!(error < best_error)) break;
    best_error = error;
    best_zero = step.zero;
    step.zero = next.zero / block.count;
    beta *= kKappa;
  }
  return best_zero;
}

float MaxCode(uint32_t bits) { return static_cast<float>((1u << bits) - 1); }

SLUICE_VECTOR_CLONES
Range RangeOf(const float* weights, size_t count) {
  const LaneVector first = {weights[0], weights[0], weights[0], weights[0]};
  LaneVectors low = {{first, first, first, first}};
  LaneVectors high = low;
  size_t base = 0;
  for (; base + kLanes <= count; base += kLanes) {
    const LaneVectors lanes = LoadLanes(weights + base);
    UpdateMinLanes(lanes, &low);
    UpdateMaxLanes(lanes, &high);
  }
  Range range = {MinOfLanes(low), MaxOfLanes(high)};
  // The sign of a zero becomes a bit of the row: it is the sign of the first lane with that value.
  if (range.low == 0) {
    float lanes[kLanes];
    std::memcpy(lanes, &low, sizeof(low));
    range.low = *std::min_element(lanes, lanes + kLanes);
  }
  for (; base < count; ++base) {
    range.low = std::min(range.low, weights[base]);
    range.high = std::max(range.high, weights[base]);
  }
  return range;
}

// The nearest codes for the final scale and zero as f16 stores them, so the encoder uses the reader's
// numbers.
SLUICE_VECTOR_CLONES
void NearestCodes(const float* weights, size_t count, GroupQuantizer quantizer, float max_code,
                  uint8_t* codes) {
  const float inverse = quantizer.scale == 0 ? 0.0f : 1.0f / quantizer.scale;
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(CodeOf(weights[i] * inverse, quantizer.zero, max_code));
  }
}

double SquaredError(absl::Span<const float> weights, const GroupQuantizer& quantizer,
                    absl::Span<const uint8_t> codes) {
  double error = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double value = (static_cast<double>(codes[i]) - quantizer.zero) * quantizer.scale;
    error += (weights[i] - value) * (weights[i] - value);
  }
  return error;
}

// The width of a code for `range`, as f16. A subnormal width is rounded up, since rounding down could halve
// the range that the codes reach.
float ScaleOf(float range, float max_code) {
  const float step = range / max_code;
  if (step >= kF16SmallestNormal) return RoundToF16(step);
  return std::ceil(step / kF16Step) * kF16Step;
}

// Scale and zero over a range, before any solving.
GroupQuantizer StartOf(Range range, float max_code) {
  const float scale = ScaleOf(range.high - range.low, max_code);
  return {scale, -range.low / scale};
}

SLUICE_VECTOR_CLONES
void Fill(const float* weights, int count, float inverse, Block* block) {
  block->whole = count / kLanes * kLanes;
  block->padded = (count + kLanes - 1) / kLanes * kLanes;
  block->count = static_cast<float>(count);
  for (int i = 0; i < count; ++i) block->weight[i] = weights[i];
  for (int i = count; i < block->padded; ++i) block->weight[i] = 0.0f;
  for (int i = 0; i < block->padded; ++i) block->scaled[i] = block->weight[i] * inverse;
  for (int i = 0; i < kLanes; ++i) block->mask[i] = block->whole + i < count ? 1.0f : 0.0f;
}

float Solve(absl::Span<const float> weights, GroupQuantizer start, float max_code) {
  Block block;
  Fill(weights.data(), static_cast<int>(weights.size()), 1.0f / start.scale, &block);
  return BestZero(block, start.scale, start.zero, max_code);
}

// A group of equal values: one step of the value itself. If f16 has too few bits or too little range for
// that, code 0 below a zero of that many powers of two.
GroupQuantizer ConstantGroup(float value, absl::Span<uint8_t> codes) {
  const float magnitude = std::fabs(value);
  const bool normal = magnitude >= kF16SmallestNormal && magnitude <= kF16Max;
  std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(normal && value > 0));
  if (value == 0) return {0, 0};
  if (normal) return {RoundToF16(magnitude), value > 0 ? 0.0f : 1.0f};
  const float scale = magnitude < 1 ? kF16Step : 0x1p8f;
  return {scale, RoundToF16(-value / scale)};
}

GroupQuantizer QuantizeOver(Range range, absl::Span<const float> weights, float max_code, bool solve,
                            absl::Span<uint8_t> codes) {
  GroupQuantizer quantizer = StartOf(range, max_code);
  if (solve) quantizer.zero = Solve(weights, quantizer, max_code);
  quantizer.zero = RoundToF16(quantizer.zero);
  NearestCodes(weights.data(), weights.size(), quantizer, max_code, codes.data());
  return quantizer;
}

GroupQuantizer Quantize(absl::Span<const float> weights, uint32_t bits, bool solve,
                        absl::Span<uint8_t> codes) {
  const float max_code = MaxCode(bits);
  const Range range = RangeOf(weights.data(), weights.size());
  if (range.low == range.high) return ConstantGroup(range.low, codes);
  const GroupQuantizer quantizer = QuantizeOver(range, weights, max_code, solve, codes);
  if (range.low <= 0 && range.high >= 0) return quantizer;
  // Far from 0 the zero is large and f16 rounds it coarsely; a range that includes 0 may then be better.
  uint8_t other_codes[kMaxQuantGroup];
  const absl::Span<uint8_t> used = absl::MakeSpan(other_codes, weights.size());
  const Range wide = {std::min(range.low, 0.0f), std::max(range.high, 0.0f)};
  const GroupQuantizer other = QuantizeOver(wide, weights, max_code, solve, used);
  if (SquaredError(weights, other, used) < SquaredError(weights, quantizer, codes)) {
    std::copy(used.begin(), used.end(), codes.begin());
    return other;
  }
  return quantizer;
}

Range RangeOverZero(absl::Span<const float> weights) {
  const Range range = RangeOf(weights.data(), weights.size());
  return {std::min(range.low, 0.0f), std::max(range.high, 0.0f)};
}

}  // namespace

GroupQuantizer QuantizeGroupHqq(absl::Span<const float> weights, uint32_t bits, absl::Span<uint8_t> codes) {
  return Quantize(weights, bits, /*solve=*/true, codes);
}

GroupQuantizer QuantizeGroupNearest(absl::Span<const float> weights, uint32_t bits,
                                    absl::Span<uint8_t> codes) {
  return Quantize(weights, bits, /*solve=*/false, codes);
}

bool GroupFits(absl::Span<const float> weights, uint32_t bits) {
  const Range range = RangeOverZero(weights);
  return range.high - range.low <= kF16Max * MaxCode(bits);
}

float ScaleOverZero(absl::Span<const float> weights, uint32_t bits) {
  const Range range = RangeOverZero(weights);
  return range.low == range.high ? 0.0f : ScaleOf(range.high - range.low, MaxCode(bits));
}

float SolveZero(absl::Span<const float> weights, uint32_t bits, float scale) {
  if (!(scale > 0)) return 0;
  const float max_code = MaxCode(bits);
  const GroupQuantizer start = {scale, -RangeOverZero(weights).low / scale};
  return std::clamp(Solve(weights, start, max_code), 0.0f, max_code);
}

void AssignCodes(absl::Span<const float> weights, uint32_t bits, const GroupQuantizer& quantizer,
                 absl::Span<uint8_t> codes) {
  NearestCodes(weights.data(), weights.size(), quantizer, MaxCode(bits), codes.data());
}

}  // namespace sluice
