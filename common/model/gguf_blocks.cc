#include "common/model/gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/base/half.h"

namespace sluice {
namespace {

constexpr uint32_t kSmall = 32;   // values of a block of the older formats
constexpr uint32_t kSuper = 256;  // values of a super-block

float Half(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return F16ToFloat(bits);
}

// Returns code i of the 32 in 16 bytes: the low halves are the first 16.
uint8_t HalfNibble(const uint8_t* qs, uint32_t i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
// Unpacks all 32 codes.
void UnpackHalves(const uint8_t* qs, uint8_t* codes) {
  for (uint32_t i = 0; i < 16; ++i) codes[i] = qs[i] & 15;
  for (uint32_t i = 0; i < 16; ++i) codes[16 + i] = qs[i] >> 4;
}

void DecodeF32(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }
// Numbers of experts and the like, far below 2^24.
void DecodeI32(const uint8_t* block, float* out) {
  int32_t number = 0;
  std::memcpy(&number, block, sizeof(number));
  *out = static_cast<float>(number);
}
void DecodeF16(const uint8_t* block, float* out) { *out = Half(block); }
void DecodeBf16(const uint8_t* block, float* out) {
  uint16_t bits = 0;
  std::memcpy(&bits, block, sizeof(bits));
  *out = Bf16ToFloat(bits);
}

void CopyHalf(const uint8_t* bytes, uint16_t* out) { std::memcpy(out, bytes, sizeof(*out)); }

// Copies an addend with its sign inverted: rows subtract their minimum.
void CopyNegated(const uint8_t* bytes, uint16_t* out) {
  CopyHalf(bytes, out);
  *out ^= 0x8000;
}

// Block: d, qs[16]; Q4_0, IQ4_NL.
void UnpackQ4_0(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  UnpackHalves(block + 2, out->codes);
}

// Block: d, m, qs[16].
void UnpackQ4_1(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  CopyNegated(block + 2, &out->dmin);
  UnpackHalves(block + 4, out->codes);
}

uint8_t FiveBits(const uint8_t* high, const uint8_t* qs, uint32_t i) {
  return static_cast<uint8_t>(HalfNibble(qs, i) | (high[i / 8] >> i % 8 & 1) << 4);
}

// Block: d, qh[4], qs[16].
void UnpackQ5_0(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  for (uint32_t i = 0; i < kSmall; ++i) out->codes[i] = FiveBits(block + 2, block + 6, i);
}

// Block: d, m, qh[4], qs[16].
void UnpackQ5_1(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  CopyNegated(block + 2, &out->dmin);
  for (uint32_t i = 0; i < kSmall; ++i) out->codes[i] = FiveBits(block + 4, block + 8, i);
}

// Block: d, q[32] (signed).
void UnpackQ8_0(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  for (uint32_t i = 0; i < kSmall; ++i) out->codes[i] = block[2 + i] ^ 0x80;
}

// Unpacks two bits for each value of a super-block of 64 bytes: a byte has those of values 32 apart.
void UnpackTwoBits(const uint8_t* qs, uint8_t* codes) {
  for (uint32_t half = 0; half < kSuper / 128; ++half, qs += 32, codes += 128) {
    for (uint32_t i = 0; i < 32; ++i) codes[i] = qs[i] & 3;
    for (uint32_t i = 0; i < 32; ++i) codes[32 + i] = qs[i] >> 2 & 3;
    for (uint32_t i = 0; i < 32; ++i) codes[64 + i] = qs[i] >> 4 & 3;
    for (uint32_t i = 0; i < 32; ++i) codes[96 + i] = qs[i] >> 6;
  }
}

// Block: scales[16], qs[64], d, dmin.
void UnpackQ2_K(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block + 80, &out->d);
  CopyHalf(block + 82, &out->dmin);
  for (uint32_t g = 0; g < kSuper / 16; ++g) {
    out->scales[g] = block[g] & 15;
    out->mins[g] = block[g] >> 4;
  }
  UnpackTwoBits(block + 16, out->codes);
}

// Block: hmask[32], qs[64], scales[12], d.
void UnpackQ3_K(const uint8_t* block, CodeBlock* out) {
  const uint8_t* const scales = block + 96;
  CopyHalf(block + 108, &out->d);
  for (uint32_t g = 0; g < kSuper / 16; ++g) {
    const uint32_t low = scales[g % 8] >> (g < 8 ? 0 : 4) & 15u;
    const uint32_t high = scales[8 + g % 4] >> 2 * (g / 4) & 3u;
    out->scales[g] = static_cast<uint8_t>((high << 4 | low) - 32);
  }
  UnpackTwoBits(block + 32, out->codes);
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    for (uint32_t i = 0; i < 32; ++i)
      out->codes[32 * g + i] |= static_cast<uint8_t>((block[i] >> g & 1) << 2);
  }
}

// Unpacks the 6-bit scales and minimums in the twelve bytes that Q4_K and Q5_K share.
void UnpackSixBits(const uint8_t* scales, CodeBlock* out) {
  for (uint32_t g = 0; g < 4; ++g) {
    out->scales[g] = scales[g] & 63;
    out->mins[g] = scales[g + 4] & 63;
    out->scales[g + 4] = static_cast<uint8_t>((scales[g + 8] & 15) | scales[g] >> 6 << 4);
    out->mins[g + 4] = static_cast<uint8_t>(scales[g + 8] >> 4 | scales[g + 4] >> 6 << 4);
  }
}

// Unpacks 256 nibbles; two groups of 32 share 32 bytes, with the first group in the low halves.
void UnpackNibbles(const uint8_t* qs, uint8_t* codes) {
  for (uint32_t pair = 0; pair < kSuper / 64; ++pair, qs += 32, codes += 64) {
    for (uint32_t i = 0; i < 32; ++i) codes[i] = qs[i] & 15;
    for (uint32_t i = 0; i < 32; ++i) codes[32 + i] = qs[i] >> 4;
  }
}

// Block: d, dmin, scales[12], qs[128].
void UnpackQ4_K(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  CopyHalf(block + 2, &out->dmin);
  UnpackSixBits(block + 4, out);
  UnpackNibbles(block + 16, out->codes);
}

// Block: d, dmin, scales[12], qh[32], qs[128].
void UnpackQ5_K(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  CopyHalf(block + 2, &out->dmin);
  UnpackSixBits(block + 4, out);
  UnpackNibbles(block + 48, out->codes);
  const uint8_t* const qh = block + 16;
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    for (uint32_t i = 0; i < 32; ++i) {
      out->codes[32 * g + i] |= static_cast<uint8_t>((qh[i] >> g & 1) << 4);
    }
  }
}

// Block: ql[128], qh[64], scales[16] (signed), d.
void UnpackQ6_K(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block + 208, &out->d);
  std::memcpy(out->scales, block + 192, kSuper / 16);
  for (uint32_t half = 0; half < kSuper / 128; ++half) {
    const uint8_t* const ql = block + 64 * half;
    const uint8_t* const qh = block + 128 + 32 * half;
    uint8_t* const codes = out->codes + 128 * half;
    for (uint32_t i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>((ql[i] & 15) | (qh[i] << 4 & 48));
    for (uint32_t i = 0; i < 32; ++i) {
      codes[32 + i] = static_cast<uint8_t>((ql[32 + i] & 15) | (qh[i] << 2 & 48));
    }
    for (uint32_t i = 0; i < 32; ++i) codes[64 + i] = static_cast<uint8_t>(ql[i] >> 4 | (qh[i] & 48));
    for (uint32_t i = 0; i < 32; ++i) {
      codes[96 + i] = static_cast<uint8_t>(ql[32 + i] >> 4 | (qh[i] >> 2 & 48));
    }
  }
}

// Block: d, u16 of high bits of the scales, low bits[4], qs[128].
void UnpackIq4Xs(const uint8_t* block, CodeBlock* out) {
  CopyHalf(block, &out->d);
  uint16_t high = 0;
  CopyHalf(block + 2, &high);
  for (uint32_t g = 0; g < kSuper / 32; ++g) {
    const uint32_t low = block[4 + g / 2] >> 4 * (g % 2) & 15u;
    out->scales[g] = static_cast<uint8_t>((low | (high >> 2 * g & 3u) << 4) - 32);
    UnpackHalves(block + 8 + 16 * g, out->codes + 32 * g);
  }
}

constexpr float kGgufE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Block: an exponent, qs[16]. Exponent 255 is NaN by the standard.
void DecodeMxfp4(const uint8_t* block, float* out) {
  const float scale = block[0] == 255 ? NAN : std::ldexp(1.0f, block[0] - 127);
  for (uint32_t i = 0; i < kSmall; ++i) out[i] = scale * kGgufE2m1Values[HalfNibble(block + 1, i)];
}

// Decodes values through codes, so each format is written once.
template <Encoding kEncoding, void (*kUnpack)(const uint8_t*, CodeBlock*)>
void Decode(const uint8_t* block, float* out) {
  CodeBlock codes;
  kUnpack(block, &codes);
  DecodeCodeBlock(kEncoding, codes, out);
}

template <Encoding kEncoding, void (*kUnpack)(const uint8_t*, CodeBlock*)>
constexpr GgufBlockFormat InCodes(uint32_t id, const char* name, uint32_t bytes) {
  const RowTraits traits = TraitsOf(kEncoding);
  return {id,        name,   traits.super_group == 0 ? kSmall : kSuper, bytes, &Decode<kEncoding, kUnpack>,
          kEncoding, kUnpack};
}

// Copies the block's own bytes.
template <Encoding kEncoding>
void CopyBlock(const uint8_t* block, CodeBlock* out) {
  std::memcpy(out->codes, block, TraitsOf(kEncoding).block_bytes);
  out->factor = 1;
}

template <Encoding kEncoding>
constexpr GgufBlockFormat InFile(uint32_t id, const char* name) {
  constexpr RowTraits kOf = TraitsOf(kEncoding);
  return {id,
          name,
          uint32_t{kOf.group} * kOf.super_group,
          kOf.block_bytes,
          &Decode<kEncoding, &CopyBlock<kEncoding>>,
          kEncoding,
          &CopyBlock<kEncoding>};
}

constexpr GgufBlockFormat kFormats[] = {
    {kGgufF32, "F32", 1, 4, &DecodeF32},
    {kGgufF16, "F16", 1, 2, &DecodeF16},
    {kGgufBf16, "BF16", 1, 2, &DecodeBf16},
    {kGgufI32, "I32", 1, 4, &DecodeI32},
    {kGgufMxfp4, "MXFP4", kSmall, 17, &DecodeMxfp4, Encoding::kMxfp4},
    InCodes<blocks::kQ4_0, &UnpackQ4_0>(2, "Q4_0", 18),
    InCodes<blocks::kQ4_1, &UnpackQ4_1>(3, "Q4_1", 20),
    InCodes<blocks::kQ5_0, &UnpackQ5_0>(6, "Q5_0", 22),
    InCodes<blocks::kQ5_1, &UnpackQ5_1>(7, "Q5_1", 24),
    InCodes<blocks::kQ8_0, &UnpackQ8_0>(8, "Q8_0", 34),
    InCodes<blocks::kQ2_K, &UnpackQ2_K>(10, "Q2_K", 84),
    InCodes<blocks::kQ3_K, &UnpackQ3_K>(11, "Q3_K", 110),
    InCodes<blocks::kQ4_K, &UnpackQ4_K>(12, "Q4_K", 144),
    InCodes<blocks::kQ5_K, &UnpackQ5_K>(13, "Q5_K", 176),
    InCodes<blocks::kQ6_K, &UnpackQ6_K>(14, "Q6_K", 210),
    InCodes<blocks::kIq4Nl, &UnpackQ4_0>(20, "IQ4_NL", 18),
    InCodes<blocks::kIq4Xs, &UnpackIq4Xs>(23, "IQ4_XS", 136),
    InFile<blocks::kIq2Xxs>(16, "IQ2_XXS"),
    InFile<blocks::kIq2Xs>(17, "IQ2_XS"),
    InFile<blocks::kIq3Xxs>(18, "IQ3_XXS"),
    InFile<blocks::kIq1S>(19, "IQ1_S"),
    InFile<blocks::kIq3S>(21, "IQ3_S"),
    InFile<blocks::kIq2S>(22, "IQ2_S"),
    InFile<blocks::kIq1M>(29, "IQ1_M"),
    InFile<blocks::kTq1_0>(34, "TQ1_0"),
    InFile<blocks::kTq2_0>(35, "TQ2_0"),
    InFile<blocks::kNvfp4>(kGgufNvfp4, "NVFP4"),
    InFile<blocks::kQ1_0>(41, "Q1_0"),
    InFile<blocks::kQ2_0>(kGgufQ2_0, "Q2_0"),
};

struct OtherFormat {
  uint32_t id;
  const char* name;
};
constexpr OtherFormat kOthers[] = {
    {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"}, {25, "I16"}, {27, "I64"}, {28, "F64"},
};

// Types of ik_llama.cpp. Rows of many of them begin with numbers of their own, so that nothing behind their
// tensor can be found.
constexpr OtherFormat kIkFormats[] = {
    {36, "I2_S"},      {97, "Q8_0_X4"},   {98, "Q8_1_X4"},  {99, "Q8_2_X4"},  {133, "Q6_0"},
    {134, "IQ1_BN"},   {135, "IQ2_BN"},   {136, "Q8_K64"},  {137, "IQ2_K"},   {138, "IQ3_K"},
    {139, "IQ4_K"},    {140, "IQ5_K"},    {141, "IQ6_K"},   {144, "IQ4_KS"},  {145, "IQ2_KS"},
    {146, "IQ4_KSS"},  {147, "Q8_K16"},   {148, "Q8_K32"},  {149, "Q8_KR8"},  {150, "Q8_K128"},
    {151, "Q8_KV"},    {152, "IQ5_KS"},   {153, "IQ2_KT"},  {154, "IQ3_KT"},  {155, "IQ4_KT"},
    {156, "IQ3_KS"},   {157, "IQ2_KL"},   {158, "IQ1_KT"},  {233, "Q6_0_R4"}, {353, "MXFP4_R8"},
    {397, "Q8_K_R16"}, {398, "Q8_KV_R8"}, {399, "Q8_K_R8"},
};
constexpr uint32_t kFirstInterleaved = 200;  // type X with rows interleaved is 200 + X
constexpr uint32_t kLastInterleaved = 352;

constexpr OtherFormat kPrismFormats[] = {{142, "PQ2_0"}, {143, "PTQ1_0"}};

const char* FindName(absl::Span<const OtherFormat> formats, uint32_t id) {
  for (const OtherFormat& other : formats) {
    if (other.id == id) return other.name;
  }
  return nullptr;
}

}  // namespace

const GgufBlockFormat* FindGgufFormat(uint32_t id) {
  for (const GgufBlockFormat& format : kFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

std::string DescribeGgufFormat(uint32_t id) {
  if (const char* name = FindName(kOthers, id)) return name;
  if (const char* name = FindName(kIkFormats, id)) return absl::StrCat(name, ", made for ik_llama.cpp,");
  if (const char* name = FindName(kPrismFormats, id)) return absl::StrCat(name, ", made for PrismML's fork,");
  if (id >= kFirstInterleaved && id <= kLastInterleaved) {
    const uint32_t base = id - kFirstInterleaved;
    const GgufBlockFormat* const format = FindGgufFormat(base);
    const char* const own = FindName(kIkFormats, base);
    const std::string name = format != nullptr ? format->name
                             : own != nullptr  ? own
                                               : absl::StrCat("type ", id);
    return absl::StrCat(name, " with interleaved rows, made for ik_llama.cpp,");
  }
  return absl::StrCat("type ", id);
}

}  // namespace sluice
