// Row encodings and the parts of an expert: the terms that every layer of the system shares.
//
// A row is one neuron's weights along `hidden` (or any matrix row). Values are frozen: they are stored in
// packs (pack/FORMAT.md) and in the session ABI (common/ring/session_abi.h).
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

namespace sluice {

// Storage format of one row's weights. Numbers are frozen.
enum class Encoding : uint8_t {
  kInvalid = 0,
  kBf16 = 1,   // little-endian bfloat16
  kF16 = 2,    // little-endian IEEE half
  kF32 = 3,    // little-endian IEEE single (norm vectors)
  kQ8 = 8,     // 8-bit codes, groups with scale and zero
  kQ4 = 9,     // 4-bit codes
  kQ3 = 10,    // a 2-bit plane and a 1-bit plane
  kQ2 = 11,    // 2-bit codes
  kMxfp4 = 16  // OCP MXFP4 blocks of 32 with a shared exponent
};

// One of an expert's three matrices. A part set holds it as the bit `1 << part`.
enum class Part : uint8_t { kUp = 0, kGate = 1, kDown = 2 };
inline constexpr int kPartCount = 3;
using PartSet = uint8_t;  // bit mask of Part
inline constexpr PartSet kAllParts = 0x7;
inline constexpr PartSet PartBit(Part part) {
  return static_cast<PartSet>(1u << static_cast<unsigned>(part));
}

// Complete description of an encoded row. `group` values share a scale and a zero; 0 for unquantized
// encodings.
struct EncodingDescriptor {
  Encoding encoding = Encoding::kInvalid;
  uint8_t meta_bits = 0;     // 16: f16 scale and zero; 8: 8-bit in super-groups; 0 for unquantized
  uint16_t group = 0;        // 16..128, need not divide the row (the tail group is shorter)
  uint16_t super_group = 0;  // groups per super-group with meta_bits 8, else 0
  bool operator==(const EncodingDescriptor&) const = default;
};

}  // namespace sluice
