#include "common/quant/hqq.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr int kLanes =
    16;  // sums run over 16 lanes whatever the vector width, so every CPU gives the same bits
constexpr float kF16Max = 65504.0f;
constexpr float kF16SmallestNormal = 0x1p-14f;
constexpr float kF16Step = 0x1p-24f;  // between subnormal halves

// The proximal solver's parameters, as in the reference package's default.
constexpr int kIterations = 20;
constexpr float kBeta = 10.0f;
constexpr float kKappa = 1.01f;
constexpr float kNormMinusOne = -0.3f;  // p - 1 with p = 0.7

// Weights padded to whole lanes; `mask` is 1 for real values and 0 for padding.
struct alignas(64) Block {
  float weight[kMaxQuantGroup];
  float mask[kMaxQuantGroup];
  int padded = 0;
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

float SumLanes(const float* lanes) {
  float sums[kLanes];
  std::copy(lanes, lanes + kLanes, sums);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      sums[i] += sums[i + width];
    }
  }
  return sums[0];
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

inline float CodeOf(float weight, float inverse, float zero, float max_code) {
  const float limited = std::min(std::max(weight * inverse + zero, 0.0f), max_code);
  return RoundEven(limited);
}

// One solver iteration: the mean squared w - w' at `zero`, and the next zero, mean(code - (w - shrunk error)
// * inverse).
struct Iteration {
  float error;
  float next_zero;
};

#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
Iteration
Iterate(const Block& block, float inverse, float scale, float zero, float max_code, float inverse_beta) {
  float error[kLanes] = {};
  float sum[kLanes] = {};
  for (int base = 0; base < block.padded; base += kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      const float weight = block.weight[base + i];
      const float code = CodeOf(weight, inverse, zero, max_code);
      const float residual = weight - (code - zero) * scale;
      const float magnitude = std::fabs(residual);
      const float shrunk =
          std::max(magnitude - inverse_beta * PowMinusPoint3(std::max(magnitude, 1e-18f)), 0.0f);
      const float kept = std::copysign(shrunk, residual);
      error[i] += magnitude * magnitude * block.mask[base + i];
      sum[i] += (code - (weight - kept) * inverse) * block.mask[base + i];
    }
  }
  return {SumLanes(error) / block.count, SumLanes(sum) / block.count};
}

float MaxCode(uint32_t bits) { return static_cast<float>((1u << bits) - 1); }

Range RangeOf(absl::Span<const float> weights) {
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  return {*low, *high};
}

// Codes for the final, f16-rounded scale and zero; returns the squared error.
double NearestCodes(absl::Span<const float> weights, const GroupQuantizer& quantizer, float max_code,
                    absl::Span<uint8_t> codes) {
  double error = 0;
  const float inverse = quantizer.scale == 0 ? 0.0f : 1.0f / quantizer.scale;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float code = CodeOf(weights[i], inverse, quantizer.zero, max_code);
    codes[i] = static_cast<uint8_t>(code);
    const double difference =
        static_cast<double>(weights[i]) - (static_cast<double>(code) - quantizer.zero) * quantizer.scale;
    error += difference * difference;
  }
  return error;
}

// Steps of `range`, as f16; rounded up if that is subnormal, where rounding down could halve the range.
float ScaleOf(float range, float max_code) {
  const float step = range / max_code;
  if (step >= kF16SmallestNormal) return RoundToF16(step);
  return std::ceil(step / kF16Step) * kF16Step;
}

// Scale and zero over a range before any solving.
GroupQuantizer StartOf(Range range, float max_code) {
  const float scale = ScaleOf(range.high - range.low, max_code);
  return {scale, -range.low / scale};
}

GroupQuantizer Solve(absl::Span<const float> weights, GroupQuantizer start, float max_code) {
  Block block;
  block.padded = static_cast<int>((weights.size() + kLanes - 1) / kLanes * kLanes);
  block.count = static_cast<float>(weights.size());
  for (int i = 0; i < block.padded; ++i) {
    const bool real = static_cast<size_t>(i) < weights.size();
    block.weight[i] = real ? weights[i] : 0.0f;
    block.mask[i] = real ? 1.0f : 0.0f;
  }
  const float inverse = 1.0f / start.scale;
  float zero = start.zero;
  float best_zero = zero;
  float best_error = std::numeric_limits<float>::infinity();
  float beta = kBeta;
  for (int i = 0; i < kIterations; ++i) {
    const Iteration step = Iterate(block, inverse, start.scale, zero, max_code, 1.0f / beta);
    if (!(step.error < best_error)) {
      break;
    }
    best_error = step.error;
    best_zero = zero;
    zero = step.next_zero;
    beta *= kKappa;
  }
  return {start.scale, best_zero};
}

// A group of equal values: one step of the value itself. Where f16 has too few bits or too little range for
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

GroupQuantizer Quantize(absl::Span<const float> weights, uint32_t bits, bool solve,
                        absl::Span<uint8_t> codes) {
  const float max_code = MaxCode(bits);
  const Range range = RangeOf(weights);
  if (range.low == range.high) {
    return ConstantGroup(range.low, codes);
  }
  const auto finish = [&](Range over, absl::Span<uint8_t> out, GroupQuantizer* quantizer) {
    const GroupQuantizer start = StartOf(over, max_code);
    *quantizer = solve ? Solve(weights, start, max_code) : start;
    quantizer->zero = RoundToF16(quantizer->zero);
    return NearestCodes(weights, *quantizer, max_code, out);
  };
  GroupQuantizer quantizer;
  const double error = finish(range, codes, &quantizer);
  if (range.low <= 0 && range.high >= 0) {
    return quantizer;
  }
  // Far from 0 the zero is large and f16 rounds it coarsely; a range that reaches 0 may then do better.
  uint8_t other_codes[kMaxQuantGroup];
  GroupQuantizer other;
  const double other_error = finish({std::min(range.low, 0.0f), std::max(range.high, 0.0f)},
                                    absl::MakeSpan(other_codes, weights.size()), &other);
  if (other_error < error) {
    std::copy(other_codes, other_codes + weights.size(), codes.begin());
    return other;
  }
  return quantizer;
}

Range RangeOverZero(absl::Span<const float> weights) {
  const Range range = RangeOf(weights);
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
  return std::clamp(Solve(weights, start, max_code).zero, 0.0f, max_code);
}

void AssignCodes(absl::Span<const float> weights, uint32_t bits, const GroupQuantizer& quantizer,
                 absl::Span<uint8_t> codes) {
  NearestCodes(weights, quantizer, MaxCode(bits), codes);
}

}  // namespace sluice
