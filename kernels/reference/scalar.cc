#include "kernels/reference/scalar.h"

#include <algorithm>
#include <bit>

#include "absl/types/span.h"
#include "common/base/file_blocks.h"
#include "kernels/scalar_math.h"
#include "pack/row_layout.h"

namespace sluice::reference {
namespace {

// Saturating conversion of an already scaled value, equal to the packing instructions.
int8_t RoundCode(float value) {
  const float rounded = std::nearbyint(value);
  if (!(rounded > -128.0f)) {  // NaN too
    return -128;
  }
  return rounded < 127.0f ? static_cast<int8_t>(rounded) : int8_t{127};
}

// Codes [first, first + count) of a plane. The width is a constant, so that places need no division: tests
// spend much of their time here.
template <uint32_t kBits>
void PlaneCodes(const uint8_t* plane, uint64_t first, uint64_t count, int32_t* codes) {
  for (uint64_t i = 0; i < count; ++i) {
    const CodeLocation place = LocateCode(kBits, first + i);
    codes[i] = (LoadU16(plane + place.byte_offset) >> place.shift) & ((1 << kBits) - 1);
  }
}
void PlaneCodes(uint32_t bits, const uint8_t* plane, uint64_t first, uint64_t count, int32_t* codes) {
  switch (bits) {
    case 1:
      return PlaneCodes<1>(plane, first, count, codes);
    case 2:
      return PlaneCodes<2>(plane, first, count, codes);
    case 4:
      return PlaneCodes<4>(plane, first, count, codes);
    default:
      return PlaneCodes<8>(plane, first, count, codes);
  }
}

// Adds the upper bits of codes [first, first + count) from the second plane.
void AddHighCodes(const RowTraits& traits, const uint8_t* plane, uint64_t first, uint64_t count,
                  int32_t* codes) {
  for (uint64_t i = 0; i < count; ++i) {
    const CodeLocation place = traits.low_bits == 4 ? LocateHighCode(traits.high_bits, first + i)
                                                    : LocateCode(traits.high_bits, first + i);
    const int32_t high = LoadU16(plane + place.byte_offset) >> place.shift & ((1 << traits.high_bits) - 1);
    codes[i] |= high << traits.low_bits;
  }
}

// The value of a group's 8-bit scale (first = 0) or zero (first = 2).
float SuperValue(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group, uint8_t code,
                 uint64_t first) {
  const uint8_t* quadruple = row + SuperGroupOffset(d, cols) + 8 * (group / d.super_group);
  const float scale = F16ToFloat(LoadU16(quadruple + 2 * first));
  const float zero = F16ToFloat(LoadU16(quadruple + 2 * first + 2));
  return (static_cast<float>(code) - zero) * scale;
}

// Number `index` of a group's super-group: d or dmin.
float SuperNumber(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group,
                  uint64_t index) {
  return F16ToFloat(LoadU16(row + SuperGroupOffset(d, cols) +
                            group / d.super_group * SuperGroupBytes(d.encoding) + 2 * index));
}

// The codes and scales of the file block that holds value k; scales times the row's factor.
struct FileBlock {
  int8_t codes[256];
  float scales[16];
};
FileBlock FileBlockAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t k) {
  const RowTraits traits = TraitsOf(d.encoding);
  FileBlock block;
  UnpackFileBlock(d.encoding, row + k / (traits.group * traits.super_group) * traits.block_bytes, block.codes,
                  block.scales);
  if (HasRowFactor(d.encoding)) {
    const float factor = LoadF32(row + FileBlockBytes(d.encoding, cols));
    for (float& scale : block.scales) {
      scale *= factor;
    }
  }
  return block;
}
uint64_t PlaceInBlock(const EncodingDescriptor& d, uint64_t k) { return k % (d.group * d.super_group); }

float PlainDot(Encoding encoding, const uint8_t* row, const float* x, uint64_t cols) {
  LaneSum sum;
  for (uint64_t k = 0; k < cols; ++k) {
    sum.AddProduct(k, x[k], PlainValue(encoding, row, k));
  }
  return sum.Total();
}

float QuantizedDot(const EncodingDescriptor& d, const uint8_t* row, const float* x, uint64_t cols) {
  float lanes[8] = {};
  std::vector<int8_t> q(d.group);
  std::vector<int32_t> codes(d.group);
  for (uint64_t first = 0, g = 0; first < cols; first += d.group, ++g) {
    const uint64_t count = std::min<uint64_t>(d.group, cols - first);
    const float sx = RoundToInt8(x + first, count, q.data());
    int32_t sum = 0;
    int32_t x_sum = 0;
    ReadCodes(d, row, cols, first, count, codes.data());
    for (uint64_t i = 0; i < count; ++i) {
      sum += codes[i] * q[i];
      x_sum += q[i];
    }
    const float scale = ScaleAt(d, row, cols, g);
    const float s = static_cast<float>(sum);
    const float x = static_cast<float>(x_sum);
    if (HasMins(TraitsOf(d.encoding).meta)) {
      lanes[g % 8] = std::fma(sx, std::fma(-MinAt(d, row, cols, g), x, scale * s), lanes[g % 8]);
    } else {
      lanes[g % 8] = std::fma(scale * sx, std::fma(-ZeroAt(d, row, cols, g), x, s), lanes[g % 8]);
    }
  }
  float s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = lanes[i] + lanes[i + 4];
  }
  return (s[0] + s[2]) + (s[1] + s[3]) + 0.0f;
}

}  // namespace

float LaneSum::Total() const {
  float r[16];
  for (int i = 0; i < 16; ++i) {
    r[i] = lanes_[i] + lanes_[i + 16];
  }
  float s[8];
  for (int i = 0; i < 8; ++i) {
    s[i] = r[i] + r[i + 8];
  }
  float t[4];
  for (int i = 0; i < 4; ++i) {
    t[i] = s[i] + s[i + 4];
  }
  return (t[0] + t[2]) + (t[1] + t[3]) + 0.0f;
}

float Exp(float x) {
  if (std::isnan(x)) {
    return x;
  }
  if (x < -87.0f) {
    return 0.0f;
  }
  x = std::min(x, 88.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  float r = std::fma(-n, 0.693359375f, x);
  r = std::fma(-n, -2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r);
  p = p + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

namespace {

// Section 7: x times the normal distribution's share below x.
float Gelu(float x) {
  const float z = std::fabs(x) * 0.707106781f;
  const float t = 1.0f / std::fma(0.5f, z, 1.0f);
  float p = 0.17087277f;
  for (const float coefficient : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                                  0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f}) {
    p = std::fma(p, t, coefficient);
  }
  const float tail = 0.5f * t * Exp(std::fma(-z, z, p));
  return x < 0 ? x * tail : x * (1.0f - tail);
}

}  // namespace

float GateFactor(const ActivationSpec& activation, float g) {
  switch (activation.kind) {
    case Activation::kSilu:
      return g / (1.0f + Exp(-g));
    case Activation::kGeluTanh:
      return g / (1.0f + Exp(-(g * std::fma(g * g, 0.0713548163f, 1.59576912f))));
    case Activation::kGelu:
      return Gelu(g);
    case Activation::kClampedSwiglu: {
      const float clamped = activation.limit < g ? activation.limit : g;
      return clamped / (1.0f + Exp(-(activation.alpha * clamped)));
    }
    case Activation::kRelu2:
      return 0.0f > g ? 0.0f : g;
    case Activation::kLimitedSilu: {
      const float limited = activation.limit < g ? activation.limit : g;
      return limited / (1.0f + Exp(-limited));
    }
    case Activation::kClampedSilu: {
      const float silu = g / (1.0f + Exp(-g));
      return activation.limit < silu ? activation.limit : silu;
    }
  }
  return 0;
}

float UpFactor(const ActivationSpec& activation, float u) {
  if (activation.kind != Activation::kClampedSwiglu && activation.kind != Activation::kClampedSilu &&
      activation.kind != Activation::kLimitedSilu) {
    return u;
  }
  const float low = -activation.limit > u ? -activation.limit : u;
  const float clamped = activation.limit < low ? activation.limit : low;
  return activation.kind == Activation::kClampedSwiglu ? 1.0f + clamped : clamped;
}

float PlainValue(Encoding encoding, const uint8_t* row, uint64_t k) {
  switch (encoding) {
    case Encoding::kBf16:
      return Bf16ToFloat(LoadU16(row + 2 * k));
    case Encoding::kF16:
      return F16ToFloat(LoadU16(row + 2 * k));
    default:
      return LoadF32(row + 4 * k);
  }
}

void ReadCodes(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t first, uint64_t count,
               int32_t* codes) {
  const RowTraits traits = TraitsOf(d.encoding);
  if (traits.meta == RowMeta::kFileBlock) {
    const FileBlock block = FileBlockAt(d, row, cols, first);
    std::copy_n(block.codes + PlaceInBlock(d, first), count, codes);
    return;
  }
  PlaneCodes(traits.low_bits, row, first, count, codes);
  if (traits.high_bits != 0) {
    AddHighCodes(traits, row + HighPlaneOffset(d, cols), first, count, codes);
  }
  if (d.encoding == Encoding::kMxfp4) {
    constexpr int32_t kTwiceE2m1[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int32_t& code : absl::MakeSpan(codes, count)) {
      code = code < 8 ? kTwiceE2m1[code] : -kTwiceE2m1[code - 8];
    }
  } else if (IsIq4(d.encoding)) {
    for (int32_t& code : absl::MakeSpan(codes, count)) {
      code = kIq4Codes[code];
    }
  }
}

float ScaleAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group) {
  const uint8_t* scales = row + ScaleOffset(d, cols);
  switch (TraitsOf(d.encoding).meta) {
    case RowMeta::kExponent:
      return scales[group] == 255 ? std::nanf("") : std::ldexp(1.0f, scales[group] - 128);
    case RowMeta::kSuperScale:
      return SuperNumber(d, row, cols, group, 0) * static_cast<float>(static_cast<int8_t>(scales[group]));
    case RowMeta::kSuperScaleMin:
      return SuperNumber(d, row, cols, group, 0) * static_cast<float>(scales[group]);
    case RowMeta::kFileBlock:
      return FileBlockAt(d, row, cols, group * d.group).scales[PlaceInBlock(d, group * d.group) / d.group];
    default:
      return d.meta_bits == 8 ? SuperValue(d, row, cols, group, scales[group], 0)
                              : F16ToFloat(LoadU16(scales + 2 * group));
  }
}

float ZeroAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group) {
  const RowTraits traits = TraitsOf(d.encoding);
  if (traits.meta != RowMeta::kScaleZero) {
    return static_cast<float>(traits.zero);
  }
  const uint8_t* zeros = row + ZeroOffset(d, cols);
  if (d.meta_bits == 8) {
    return SuperValue(d, row, cols, group, zeros[group], 2);
  }
  return F16ToFloat(LoadU16(zeros + 2 * group));
}

float MinAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group) {
  const uint8_t* mins = row + ZeroOffset(d, cols);
  return d.meta_bits == 16 ? F16ToFloat(LoadU16(mins + 2 * group))
                           : SuperNumber(d, row, cols, group, 1) * static_cast<float>(mins[group]);
}

float QuantizedValue(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t k) {
  int32_t integer = 0;
  ReadCodes(d, row, cols, k, 1, &integer);
  const float code = static_cast<float>(integer);
  const float scale = ScaleAt(d, row, cols, k / d.group);
  return HasMins(TraitsOf(d.encoding).meta) ? scale * code - MinAt(d, row, cols, k / d.group)
                                            : (code - ZeroAt(d, row, cols, k / d.group)) * scale;
}

float RoundToInt8(const float* values, uint64_t count, int8_t* codes) {
  float largest = 0.0f;
  for (uint64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
  }
  if (largest < 1e-30f) {
    std::fill(codes, codes + count, int8_t{0});
    return 0.0f;
  }
  const float inverse = 127.0f / largest;
  for (uint64_t i = 0; i < count; ++i) {
    codes[i] = RoundCode(values[i] * inverse);
  }
  return largest / 127.0f;
}

float Dot(const EncodingDescriptor& d, const uint8_t* row, const float* x, uint64_t cols) {
  return IsQuantized(d.encoding) ? QuantizedDot(d, row, x, cols) : PlainDot(d.encoding, row, x, cols);
}

void RopeHead(const float* cos_sin, uint32_t dims, bool interleaved, float* head) {
  const uint32_t half = dims / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = std::fma(a, c, -(b * s));
    b = std::fma(b, c, a * s);
    a = rotated_a;
  }
}

float StoreKvRow(KvType type, const float* values, uint32_t dim, uint8_t* row) {
  if (type == KvType::kF32) {
    std::memcpy(row, values, dim * sizeof(float));
    return 1;
  }
  if (type == KvType::kF16) {
    for (uint32_t d = 0; d < dim; ++d) {
      const uint16_t bits = FloatToF16(values[d]);
      std::memcpy(row + 2 * d, &bits, sizeof bits);
    }
    return 1;
  }
  float largest = 0;
  for (uint32_t d = 0; d < dim; ++d) {
    largest = std::max(largest, std::fabs(values[d]));
  }
  const bool zero = largest < 1e-30f;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  for (uint32_t d = 0; d < dim; ++d) {
    const float code = std::nearbyint(values[d] * inverse);
    row[d] = static_cast<uint8_t>(
        static_cast<int8_t>(std::isnan(code) ? 0.0f : std::clamp(code, -128.0f, 127.0f)));
  }
  return zero ? 0.0f : largest / 127.0f;
}

void LoadKvRow(KvType type, const uint8_t* row, uint32_t count, float* values) {
  for (uint32_t d = 0; d < count; ++d) {
    values[d] = type == KvType::kF32   ? LoadF32(row + 4 * d)
                : type == KvType::kF16 ? F16ToFloat(LoadU16(row + 2 * d))
                                       : static_cast<float>(static_cast<int8_t>(row[d]));
  }
}

void NormRow(const CallNorm& norm, const float* x, uint64_t cols, float* y) {
  const float n = static_cast<float>(cols);
  float mean = 0;
  if (norm.kind == NormKind::kLayer) {
    LaneSum sum;
    for (uint64_t k = 0; k < cols; ++k) {
      sum.Add(k, x[k]);
    }
    mean = sum.Total() / n;
  }
  LaneSum squares;
  for (uint64_t k = 0; k < cols; ++k) {
    squares.AddProduct(k, x[k] - mean, x[k] - mean);
  }
  const float r = 1.0f / std::sqrt(squares.Total() / n + norm.epsilon);
  for (uint64_t k = 0; k < cols; ++k) {
    y[k] = (x[k] - mean) * r;
    if (norm.weight != nullptr) {
      y[k] = y[k] * norm.weight[k];
    }
    if (norm.bias != nullptr) {
      y[k] = y[k] + norm.bias[k];
    }
  }
}

}  // namespace sluice::reference
