#include "common/model/gguf/gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/half.h"

namespace sluice {
namespace {

constexpr uint32_t kSmall = 32;   // values of a block of the older formats
constexpr uint32_t kSuper = 256;  // values of a super-block

float Half(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return F16ToFloat(bits);
}

float Signed(uint8_t byte) { return static_cast<float>(static_cast<int8_t>(byte)); }

// Code i of the 32 that 16 bytes hold: the low halves are the first 16.
uint32_t HalfNibble(const uint8_t* qs, uint32_t i) { return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4; }

void DecodeF32(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }
void DecodeF16(const uint8_t* block, float* out) { *out = Half(block); }
void DecodeBf16(const uint8_t* block, float* out) {
  uint16_t bits = 0;
  std::memcpy(&bits, block, sizeof(bits));
  *out = Bf16ToFloat(bits);
}

// d, qs[16]
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = d * (static_cast<float>(HalfNibble(block + 2, i)) - 8);
}

// d, m, qs[16]
void DecodeQ4_1(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(HalfNibble(block + 4, i)) + m;
}

uint32_t FiveBits(const uint8_t* high, const uint8_t* qs, uint32_t i) {
  return HalfNibble(qs, i) | (high[i / 8] >> i % 8 & 1u) << 4;
}

// d, qh[4], qs[16]
void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (uint32_t i = 0; i < kSmall; ++i) {
    out[i] = d * (static_cast<float>(FiveBits(block + 2, block + 6, i)) - 16);
  }
}

// d, m, qh[4], qs[16]
void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  for (uint32_t i = 0; i < kSmall; ++i) {
    out[i] = d * static_cast<float>(FiveBits(block + 4, block + 8, i)) + m;
  }
}

// d, q[32]
void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = d * Signed(block[2 + i]);
}

// Two bits of value v of a super-block of 64 bytes.
uint32_t TwoBits(const uint8_t* qs, uint32_t v) { return qs[v / 128 * 32 + v % 32] >> v % 128 / 32 * 2 & 3u; }

// scales[16], qs[64], d, dmin
void DecodeQ2_K(const uint8_t* block, float* out) {
  const float d = Half(block + 80);
  const float dmin = Half(block + 82);
  for (uint32_t g = 0; g < kSuper / 16; ++g) {
    const float scale = d * static_cast<float>(block[g] & 15);
    const float min = dmin * static_cast<float>(block[g] >> 4);
    for (uint32_t v = 16 * g; v < 16 * g + 16; ++v) {
      out[v] = scale * static_cast<float>(TwoBits(block + 16, v)) - min;
    }
  }
}

// hmask[32], qs[64], scales[12], d
void DecodeQ3_K(const uint8_t* block, float* out) {
  const uint8_t* const scales = block + 96;
  const float d = Half(block + 108);
  for (uint32_t g = 0; g < kSuper / 16; ++g) {
    const uint32_t low = scales[g % 8] >> (g < 8 ? 0 : 4) & 15u;
    const uint32_t high = scales[8 + g % 4] >> 2 * (g / 4) & 3u;
    const float scale = d * (static_cast<float>(high << 4 | low) - 32);
    for (uint32_t v = 16 * g; v < 16 * g + 16; ++v) {
      const float less = (block[v % 32] >> v / 32 & 1u) != 0 ? 0 : 4;
      out[v] = scale * (static_cast<float>(TwoBits(block + 32, v)) - less);
    }
  }
}

// The 6-bit scale and minimum of group g, in the twelve bytes that Q4_K and Q5_K share.
struct ScaleAndMin {
  float scale;
  float min;
};
ScaleAndMin SixBits(const uint8_t* scales, uint32_t g) {
  const uint32_t scale = g < 4 ? scales[g] & 63u : (scales[g + 4] & 15u) | scales[g - 4] >> 6 << 4;
  const uint32_t min = g < 4 ? scales[g + 4] & 63u : scales[g + 4] >> 4 | scales[g] >> 6 << 4;
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// d, dmin, scales[12], qs[128]
void DecodeQ4_K(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float dmin = Half(block + 2);
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    const ScaleAndMin six = SixBits(block + 4, g);
    const float scale = d * six.scale;
    const float min = dmin * six.min;
    const uint8_t* const qs = block + 16 + 32 * (g / 2);
    for (uint32_t i = 0; i < 32; ++i) {
      const uint32_t code = g % 2 == 0 ? qs[i] & 15u : qs[i] >> 4;
      out[32 * g + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// d, dmin, scales[12], qh[32], qs[128]
void DecodeQ5_K(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float dmin = Half(block + 2);
  const uint8_t* const qh = block + 16;
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    const ScaleAndMin six = SixBits(block + 4, g);
    const float scale = d * six.scale;
    const float min = dmin * six.min;
    const uint8_t* const qs = block + 48 + 32 * (g / 2);
    for (uint32_t i = 0; i < 32; ++i) {
      const uint32_t low = g % 2 == 0 ? qs[i] & 15u : qs[i] >> 4;
      out[32 * g + i] = scale * static_cast<float>(low | (qh[i] >> g & 1u) << 4) - min;
    }
  }
}

// ql[128], qh[64], scales[16] (signed), d
void DecodeQ6_K(const uint8_t* block, float* out) {
  const float d = Half(block + 208);
  for (uint32_t v = 0; v < kSuper; ++v) {
    const uint32_t h = v / 128;
    const uint32_t j = v % 128 / 32;
    const uint32_t l = v % 32;
    const uint32_t low = block[64 * h + 32 * (j % 2) + l] >> 4 * (j / 2) & 15u;
    const uint32_t high = block[128 + 32 * h + l] >> 2 * j & 3u;
    out[v] = d * Signed(block[192 + v / 16]) * (static_cast<float>(high << 4 | low) - 32);
  }
}

// The values of IQ4 codes.
constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// d, qs[16]
void DecodeIq4Nl(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = d * kIq4Values[HalfNibble(block + 2, i)];
}

// d, u16 of high bits of the scales, low bits[4], qs[128]
void DecodeIq4Xs(const uint8_t* block, float* out) {
  const float d = Half(block);
  uint16_t high = 0;
  std::memcpy(&high, block + 2, sizeof(high));
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    const uint32_t low = block[4 + g / 2] >> 4 * (g % 2) & 15u;
    const float scale = d * (static_cast<float>(low | (high >> 2 * g & 3u) << 4) - 32);
    for (uint32_t i = 0; i < 32; ++i) {
      out[32 * g + i] = scale * kIq4Values[HalfNibble(block + 8 + 16 * g, i)];
    }
  }
}

constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// An exponent, qs[16]. Exponent 255 is NaN by the standard.
void DecodeMxfp4(const uint8_t* block, float* out) {
  const float scale = block[0] == 255 ? NAN : std::ldexp(1.0f, block[0] - 127);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = scale * kE2m1Values[HalfNibble(block + 1, i)];
}

constexpr GgufBlockFormat kFormats[] = {
    {kGgufF32, "F32", 1, 4, &DecodeF32},      {kGgufF16, "F16", 1, 2, &DecodeF16},
    {2, "Q4_0", kSmall, 18, &DecodeQ4_0},     {3, "Q4_1", kSmall, 20, &DecodeQ4_1},
    {6, "Q5_0", kSmall, 22, &DecodeQ5_0},     {7, "Q5_1", kSmall, 24, &DecodeQ5_1},
    {8, "Q8_0", kSmall, 34, &DecodeQ8_0},     {10, "Q2_K", kSuper, 84, &DecodeQ2_K},
    {11, "Q3_K", kSuper, 110, &DecodeQ3_K},   {12, "Q4_K", kSuper, 144, &DecodeQ4_K},
    {13, "Q5_K", kSuper, 176, &DecodeQ5_K},   {14, "Q6_K", kSuper, 210, &DecodeQ6_K},
    {20, "IQ4_NL", kSmall, 18, &DecodeIq4Nl}, {23, "IQ4_XS", kSuper, 136, &DecodeIq4Xs},
    {kGgufBf16, "BF16", 1, 2, &DecodeBf16},   {kGgufMxfp4, "MXFP4", kSmall, 17, &DecodeMxfp4},
};

struct OtherFormat {
  uint32_t id;
  const char* name;
};
constexpr OtherFormat kOthers[] = {
    {9, "Q8_1"},     {15, "Q8_K"},    {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"},   {22, "IQ2_S"},   {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"},   {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},   {41, "Q1_0"},
    {42, "Q2_0"},    {137, "IQ2_K"},  {138, "IQ3_K"},  {139, "IQ4_K"}, {140, "IQ5_K"},  {141, "IQ6_K"},
    {144, "IQ4_KS"}, {145, "IQ2_KS"},
};

}  // namespace

const GgufBlockFormat* FindGgufFormat(uint32_t id) {
  for (const GgufBlockFormat& format : kFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

std::string GgufFormatName(uint32_t id) {
  for (const OtherFormat& other : kOthers) {
    if (other.id == id) return other.name;
  }
  return absl::StrCat("type ", id);
}

}  // namespace sluice
