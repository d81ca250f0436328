#include "common/base/file_blocks.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "common/base/grid_tables.h"
#include "common/base/half.h"

namespace sluice {
namespace {

// Eight codes are computed at once, as the bytes of a word.
constexpr uint64_t kOnes = 0x0101010101010101u;
constexpr uint64_t kHighBits = 0x8080808080808080u;

template <typename T>
T Load(const uint8_t* bytes) {
  T value{};
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float Half(const uint8_t* bytes) { return F16ToFloat(Load<uint16_t>(bytes)); }

// Writes eight magnitudes, negated where `mask` is ones. No magnitude is 0, so that no byte carries into the
// next.
void PutSigned(uint64_t magnitudes, uint64_t mask, int8_t* codes) {
  const uint64_t values = (magnitudes ^ mask) + (mask & kOnes);
  std::memcpy(codes, &values, sizeof(values));
}

// Writes eight values of IQ1: 8 * grid + 1, or - 1. Biased by 128 no byte carries or borrows.
void PutShifted(uint64_t grid, bool down, int8_t* codes) {
  const uint64_t biased = grid ^ kHighBits;
  const uint64_t values = (down ? biased - kOnes : biased + kOnes) ^ kHighBits;
  std::memcpy(codes, &values, sizeof(values));
}

// Block: d, then for each 32 values u8 index[4], u32 of four times seven signs and a scale.
void UnpackIq2Xxs(const uint8_t* block, int8_t* codes, float* scales) {
  const float d = Half(block) * 0.125f;
  for (uint32_t g = 0; g < 8; ++g) {
    const uint8_t* const index = block + 2 + 8 * g;
    const auto rest = Load<uint32_t>(index + 4);
    scales[g] = d * static_cast<float>(2 * (rest >> 28) + 1);
    for (uint32_t l = 0; l < 4; ++l) {
      PutSigned(kIq2XxsGrid[index[l]], kEvenSignMasks[rest >> 7 * l & 127], codes + 32 * g + 8 * l);
    }
  }
}

// Writes the scales of 16 values each that are nibbles, the low ones first.
void PutNibbleScales(float d, const uint8_t* nibbles, float* scales) {
  for (uint32_t g = 0; g < 8; ++g) {
    scales[2 * g] = d * static_cast<float>(2 * (nibbles[g] & 15) + 1);
    scales[2 * g + 1] = d * static_cast<float>(2 * (nibbles[g] >> 4) + 1);
  }
}

// Block: d, u16 of nine bits of index and seven signs [32], scales[8].
void UnpackIq2Xs(const uint8_t* block, int8_t* codes, float* scales) {
  PutNibbleScales(Half(block) * 0.125f, block + 66, scales);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t q = Load<uint16_t>(block + 2 + 2 * i);
    PutSigned(kIq2XsGrid[q & 511], kEvenSignMasks[q >> 9], codes + 8 * i);
  }
}

// Block: d, low bits of the indices[32], signs[32], high bits[8], scales[8].
void UnpackIq2S(const uint8_t* block, int8_t* codes, float* scales) {
  PutNibbleScales(Half(block) * 0.125f, block + 74, scales);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t high = block[66 + i / 4] >> 2 * (i % 4) & 3u;
    PutSigned(kIq2SGrid[block[2 + i] | high << 8], kSignMasks[block[34 + i]], codes + 8 * i);
  }
}

uint64_t TwoGrids(uint32_t first, uint32_t second) { return first | uint64_t{second} << 32; }

// Block: d, indices[64], u32 of four times seven signs and a scale [8].
void UnpackIq3Xxs(const uint8_t* block, int8_t* codes, float* scales) {
  const float d = Half(block) * 0.25f;
  const uint8_t* index = block + 2;
  for (uint32_t g = 0; g < 8; ++g) {
    const auto rest = Load<uint32_t>(block + 66 + 4 * g);
    scales[g] = d * static_cast<float>(2 * (rest >> 28) + 1);
    for (uint32_t l = 0; l < 4; ++l, index += 2, codes += 8) {
      PutSigned(TwoGrids(kIq3XxsGrid[index[0]], kIq3XxsGrid[index[1]]), kEvenSignMasks[rest >> 7 * l & 127],
                codes);
    }
  }
}

// Block: d, low bits of the indices[64], ninth bits[8], signs[32], scales[4].
void UnpackIq3S(const uint8_t* block, int8_t* codes, float* scales) {
  const float d = Half(block);
  const uint8_t* index = block + 2;
  for (uint32_t g = 0; g < 8; ++g) {
    const uint32_t nibble = block[106 + g / 2] >> 4 * (g % 2) & 15u;
    const uint32_t ninth = block[66 + g];
    scales[g] = d * static_cast<float>(2 * nibble + 1);
    for (uint32_t l = 0; l < 4; ++l, index += 2, codes += 8) {
      const uint32_t first = index[0] | (ninth >> 2 * l & 1u) << 8;
      const uint32_t second = index[1] | (ninth >> (2 * l + 1) & 1u) << 8;
      PutSigned(TwoGrids(kIq3SGrid[first], kIq3SGrid[second]), kSignMasks[block[74 + 4 * g + l]], codes);
    }
  }
}

// Block: d, low bits of the indices[32], u16 of four times three high bits, a scale and the shift's sign [8].
void UnpackIq1S(const uint8_t* block, int8_t* codes, float* scales) {
  const float d = Half(block) * 0.125f;
  for (uint32_t g = 0; g < 8; ++g) {
    const uint32_t high = Load<uint16_t>(block + 34 + 2 * g);
    scales[g] = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    for (uint32_t l = 0; l < 4; ++l) {
      const uint32_t index = block[2 + 4 * g + l] | (high >> 3 * l & 7) << 8;
      PutShifted(kIq1SGrid[index], (high & 0x8000) != 0, codes + 32 * g + 8 * l);
    }
  }
}

// Block: low bits of the indices[32], nibbles of three high bits and the shift's sign [16], u16 of four times
// three bits of scale and a nibble of d [4].
void UnpackIq1M(const uint8_t* block, int8_t* codes, float* scales) {
  uint16_t words[4];
  std::memcpy(words, block + 48, sizeof(words));
  const auto bits = static_cast<uint16_t>(words[0] >> 12 | (words[1] >> 8 & 0xf0) | (words[2] >> 4 & 0xf00) |
                                          (words[3] & 0xf000));
  const float d = F16ToFloat(bits) * 0.125f;
  for (uint32_t g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(2 * (words[g / 4] >> 3 * (g % 4) & 7) + 1);
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t nibble = block[32 + g] >> 4 * i & 15u;
      PutShifted(kIq1SGrid[block[2 * g + i] | (nibble & 7) << 8], (nibble & 8) != 0, codes + 16 * g + 8 * i);
    }
  }
}

// The trit `digit` of a byte that holds five as a fraction of 256.
int8_t Trit(uint8_t byte, uint32_t digit) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const auto shifted = static_cast<uint8_t>(byte * kPowers[digit]);
  return static_cast<int8_t>((uint32_t{shifted} * 3 >> 8) - 1);
}

// Block: five trits a byte[48], four trits a byte[4], d.
void UnpackTq1_0(const uint8_t* block, int8_t* codes, float* scales) {
  for (uint32_t g = 0; g < 8; ++g) scales[g] = Half(block + 52);
  for (uint32_t digit = 0; digit < 5; ++digit) {
    for (uint32_t i = 0; i < 32; ++i) codes[32 * digit + i] = Trit(block[i], digit);
    for (uint32_t i = 0; i < 16; ++i) codes[160 + 16 * digit + i] = Trit(block[32 + i], digit);
  }
  for (uint32_t digit = 0; digit < 4; ++digit) {
    for (uint32_t i = 0; i < 4; ++i) codes[240 + 4 * digit + i] = Trit(block[48 + i], digit);
  }
}

// Block: four codes a byte[64], those of a byte 32 values apart, d.
void UnpackTq2_0(const uint8_t* block, int8_t* codes, float* scales) {
  for (uint32_t g = 0; g < 8; ++g) {
    scales[g] = Half(block + 64);
    const uint8_t* const bytes = block + 32 * (g / 4);
    for (uint32_t i = 0; i < 32; ++i) {
      codes[32 * g + i] = static_cast<int8_t>((bytes[i] >> 2 * (g % 4) & 3) - 1);
    }
  }
}

// Returns half of an E4M3 number without its sign; the one NaN reads as 0, as llama.cpp has it.
constexpr float HalfOfE4m3(uint32_t bits) {
  if (bits == 0x7f) return 0;
  const uint32_t exponent = bits >> 3 & 15;
  const auto mantissa = static_cast<float>(bits & 7);
  float value = (exponent == 0 ? mantissa : 8 + mantissa) / 1024;
  for (uint32_t i = 1; i < exponent; ++i) value *= 2;
  return value;
}

constexpr std::array<float, 256> MakeHalvesOfE4m3() {
  std::array<float, 256> all = {};
  for (uint32_t bits = 0; bits < 256; ++bits) all[bits] = HalfOfE4m3(bits);
  return all;
}
constexpr std::array<float, 256> kHalvesOfE4m3 = MakeHalvesOfE4m3();

// Block: E4M3 scales[4], nibbles[32]; the halves of 8 bytes are the first and the last 8 of 16 values.
void UnpackNvfp4(const uint8_t* block, int8_t* codes, float* scales) {
  constexpr int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (uint32_t g = 0; g < 4; ++g) {
    scales[g] = kHalvesOfE4m3[block[g]];
    for (uint32_t i = 0; i < 8; ++i) {
      const uint8_t byte = block[4 + 8 * g + i];
      codes[16 * g + i] = kTwiceE2m1[byte & 15];
      codes[16 * g + 8 + i] = kTwiceE2m1[byte >> 4];
    }
  }
}

// Block: d, a bit a value[16].
void UnpackQ1_0(const uint8_t* block, int8_t* codes, float* scales) {
  for (uint32_t g = 0; g < 4; ++g) scales[g] = Half(block);
  for (uint32_t i = 0; i < 16; ++i) PutSigned(kOnes, ~kSignMasks[block[2 + i]], codes + 8 * i);
}

// Block: d, two bits a value[16].
void UnpackQ2_0(const uint8_t* block, int8_t* codes, float* scales) {
  for (uint32_t g = 0; g < 2; ++g) scales[g] = Half(block);
  for (uint32_t i = 0; i < 64; ++i) {
    codes[i] = static_cast<int8_t>((block[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
  }
}

using Unpacker = void (*)(const uint8_t* block, int8_t* codes, float* scales);

constexpr std::array<Unpacker, kEncodingNumbers> MakeUnpackers() {
  std::array<Unpacker, kEncodingNumbers> all = {};
  const auto set = [&all](Encoding encoding, Unpacker unpack) {
    all[static_cast<size_t>(encoding)] = unpack;
  };
  set(blocks::kIq2Xxs, &UnpackIq2Xxs);
  set(blocks::kIq2Xs, &UnpackIq2Xs);
  set(blocks::kIq2S, &UnpackIq2S);
  set(blocks::kIq3Xxs, &UnpackIq3Xxs);
  set(blocks::kIq3S, &UnpackIq3S);
  set(blocks::kIq1S, &UnpackIq1S);
  set(blocks::kIq1M, &UnpackIq1M);
  set(blocks::kTq1_0, &UnpackTq1_0);
  set(blocks::kTq2_0, &UnpackTq2_0);
  set(blocks::kNvfp4, &UnpackNvfp4);
  set(blocks::kQ1_0, &UnpackQ1_0);
  set(blocks::kQ2_0, &UnpackQ2_0);
  return all;
}
constexpr std::array<Unpacker, kEncodingNumbers> kUnpackers = MakeUnpackers();

}  // namespace

void UnpackFileBlock(Encoding encoding, const uint8_t* block, int8_t* codes, float* scales) {
  kUnpackers[static_cast<size_t>(encoding)](block, codes, scales);
}

}  // namespace sluice
