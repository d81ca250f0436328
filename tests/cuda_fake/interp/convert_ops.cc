// Values moved and converted: mov cvt cvta.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/base/half.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

struct Same {
  template <typename T>
  static T Do(T a) {
    return a;
  }
};

Outcome MaskMove(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  warp.Mask(in.d) = (warp.Mask(in.d) & ~mask) | (warp.Mask(in.a) & mask);
  return Outcome::kNext;
}

// One register to or from the registers of its parts, lowest first.
template <bool kPack>
Outcome RunVectorMove(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  ForEachLane(mask, [&](int l) {
    uint8_t* const whole = warp.Row<uint8_t>(kPack ? in.d : in.a) + l * in.register_bytes;
    for (int part = 0; part < in.elements; ++part) {
      if (in.rows[part] != kNoRow) {
        uint8_t* const piece = warp.Row<uint8_t>(in.rows[part]) + l * in.bytes;
        std::memcpy(kPack ? whole + part * in.bytes : piece, kPack ? piece : whole + part * in.bytes,
                    in.bytes);
      }
    }
  });
  return Outcome::kNext;
}

absl::Status DecodeVectorMove(Decoder& decoder, const Statement& s, Instruction* in, bool pack) {
  const Type type = TypeOf(s.words.back());
  const Operand& vector = s.operands[pack ? 0 + 1 : 0];
  in->elements = static_cast<uint8_t>(vector.parts.size());
  in->register_bytes = BytesOf(type);
  in->bytes = in->elements == 0 ? 0 : in->register_bytes / in->elements;
  if (in->elements > 4 || in->bytes < 2) {
    return UnknownForm(s);
  }
  for (size_t part = 0; part < vector.parts.size(); ++part) {
    const Type piece = in->bytes == 2 ? Type::kB16 : Type::kB32;
    if (vector.parts[part].kind != Operand::Kind::kSink) {
      in->rows[part] = decoder.Read(s, vector.parts[part], piece);
    }
  }
  if (pack) {
    in->d = decoder.Write(s, s.operands[0], type);
    in->run = RunVectorMove<true>;
  } else {
    in->a = decoder.Read(s, 1, type);
    in->run = RunVectorMove<false>;
  }
  return absl::OkStatus();
}

absl::Status DecodeMov(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  if (s.words.size() != 2 || s.operands.size() != 2) {
    return UnknownForm(s);
  }
  if (s.operands[0].kind == Operand::Kind::kVector || s.operands[1].kind == Operand::Kind::kVector) {
    return DecodeVectorMove(decoder, s, in, s.operands[1].kind == Operand::Kind::kVector);
  }
  decoder.ReadAll(s, type, in);
  in->run = type == Type::kPred  ? MaskMove
            : BytesOf(type) == 2 ? Unary<uint16_t, uint16_t, Same>
            : BytesOf(type) == 4 ? Unary<uint32_t, uint32_t, Same>
                                 : Unary<uint64_t, uint64_t, Same>;
  return absl::OkStatus();
}

// The 16-bit floats as types of their own.
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return 0x7fff;  // PTX's canonical NaN
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

enum class Round { kNearest, kZero, kDown, kUp };

template <Round kRound, typename T>
T RoundToInteger(T a) {
  return kRound == Round::kNearest ? std::nearbyint(a)
         : kRound == Round::kZero  ? std::trunc(a)
         : kRound == Round::kDown  ? std::floor(a)
                                   : std::ceil(a);
}

// "In float-to-integer conversion, NaN inputs are converted to 0 ... out-of-range inputs are clamped to the
// destination type's extremes" (PTX ISA, cvt).
template <Round kRound, typename D, typename S>
D ToInteger(S value) {
  if (std::isnan(value)) {
    return 0;
  }
  const double rounded = RoundToInteger<kRound, double>(value);
  if (rounded <= static_cast<double>(std::numeric_limits<D>::min())) {
    return std::numeric_limits<D>::min();
  }
  if (rounded >= static_cast<double>(std::numeric_limits<D>::max())) {
    return std::numeric_limits<D>::max();
  }
  return static_cast<D>(rounded);
}

template <Round kRound>
struct Convert {
  template <typename D, typename S>
  static D To(S s) {
    if constexpr (std::is_same_v<S, F16>) {
      return To<D>(F16ToFloat(s.bits));
    } else if constexpr (std::is_same_v<S, Bf16>) {
      return To<D>(std::bit_cast<float>(uint32_t{s.bits} << 16));
    } else if constexpr (std::is_same_v<D, F16>) {
      return {FloatToF16(static_cast<float>(s))};
    } else if constexpr (std::is_same_v<D, Bf16>) {
      return {ToBf16(static_cast<float>(s))};
    } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
      return ToInteger<kRound, D>(s);
    } else {
      return static_cast<D>(s);
    }
  }
};

// Registers may be wider than the types they hold: the source's low bytes count, the target is filled by its
// sign.
template <typename D, typename S, typename C>
Outcome RunConvert(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  uint8_t* const d = warp.Row<uint8_t>(in.d);
  const uint8_t* const a = warp.Row<uint8_t>(in.a);
  if (in.bytes == sizeof(S) && in.register_bytes == sizeof(D)) {
    D* const typed = reinterpret_cast<D*>(d);
    const S* const source = reinterpret_cast<const S*>(a);
    ForLanes(mask, [=](int l) { typed[l] = C::template To<D>(source[l]); });
    return Outcome::kNext;
  }
  ForEachLane(mask, [&](int l) {
    S source;
    std::memcpy(&source, a + l * in.bytes, sizeof(S));
    const D value = C::template To<D>(source);
    uint64_t wide = 0;
    if constexpr (std::is_integral_v<D>) {
      wide = static_cast<uint64_t>(static_cast<int64_t>(value));
    } else {
      std::memcpy(&wide, &value, sizeof(D));
    }
    std::memcpy(d + l * in.register_bytes, &wide, in.register_bytes);
  });
  return Outcome::kNext;
}

template <typename D, typename C>
Handler ConvertFrom(Type source) {
  switch (source) {
    case Type::kS8:
      return RunConvert<D, int8_t, C>;
    case Type::kU8:
      return RunConvert<D, uint8_t, C>;
    case Type::kS16:
      return RunConvert<D, int16_t, C>;
    case Type::kU16:
      return RunConvert<D, uint16_t, C>;
    case Type::kS32:
      return RunConvert<D, int32_t, C>;
    case Type::kU32:
      return RunConvert<D, uint32_t, C>;
    case Type::kS64:
      return RunConvert<D, int64_t, C>;
    case Type::kU64:
      return RunConvert<D, uint64_t, C>;
    case Type::kF16:
      return RunConvert<D, F16, C>;
    case Type::kBf16:
      return RunConvert<D, Bf16, C>;
    case Type::kF32:
      return RunConvert<D, float, C>;
    case Type::kF64:
      return RunConvert<D, double, C>;
    default:
      return nullptr;
  }
}

template <Round kRound>
Handler ConvertOf(Type target, Type source) {
  using C = Convert<kRound>;
  switch (target) {
    case Type::kS8:
      return ConvertFrom<int8_t, C>(source);
    case Type::kU8:
      return ConvertFrom<uint8_t, C>(source);
    case Type::kS16:
      return ConvertFrom<int16_t, C>(source);
    case Type::kU16:
      return ConvertFrom<uint16_t, C>(source);
    case Type::kS32:
      return ConvertFrom<int32_t, C>(source);
    case Type::kU32:
      return ConvertFrom<uint32_t, C>(source);
    case Type::kS64:
      return ConvertFrom<int64_t, C>(source);
    case Type::kU64:
      return ConvertFrom<uint64_t, C>(source);
    case Type::kF16:
      return ConvertFrom<F16, C>(source);
    case Type::kBf16:
      return ConvertFrom<Bf16, C>(source);
    case Type::kF32:
      return ConvertFrom<float, C>(source);
    case Type::kF64:
      return ConvertFrom<double, C>(source);
    default:
      return nullptr;
  }
}

// A float rounded to a whole number that stays a float.
template <Round kRound>
struct Whole {
  static float Do(float a) { return RoundToInteger<kRound>(a); }
};

absl::Status DecodeCvt(Decoder& decoder, const Statement& s, Instruction* in) {
  const size_t n = s.words.size();
  const Type target = n >= 3 ? TypeOf(s.words[n - 2]) : Type::kNone;
  const Type source = TypeOf(s.words.back());
  const absl::string_view round = n == 4 ? absl::string_view(s.words[1]) : "";
  const bool whole = round.size() == 3 && round[2] == 'i';
  if (n < 3 || n > 4 || (IsFloat(source) && !IsFloat(target) && !whole)) {
    return UnknownForm(s);
  }
  if (round == "rni" || round == "rn" || round.empty()) {
    in->run = ConvertOf<Round::kNearest>(target, source);
  } else if (round == "rzi") {
    in->run = ConvertOf<Round::kZero>(target, source);
  } else if (round == "rmi") {
    in->run = ConvertOf<Round::kDown>(target, source);
  } else if (round == "rpi") {
    in->run = ConvertOf<Round::kUp>(target, source);
  }
  if (whole && IsFloat(target)) {
    const bool single = target == Type::kF32 && source == Type::kF32;
    in->run = !single          ? nullptr
              : round == "rni" ? Unary<float, float, Whole<Round::kNearest>>
              : round == "rzi" ? Unary<float, float, Whole<Round::kZero>>
              : round == "rmi" ? Unary<float, float, Whole<Round::kDown>>
                               : Unary<float, float, Whole<Round::kUp>>;
  }
  if (in->run == nullptr) {
    return UnknownForm(s);
  }
  in->d = decoder.AnyRegister(s, s.operands[0], &in->register_bytes);
  if (s.operands[1].kind == Operand::Kind::kRegister) {
    in->a = decoder.AnyRegister(s, s.operands[1], &in->bytes);
  } else {
    in->bytes = std::max<uint8_t>(BytesOf(source), 2);
    in->a = decoder.Read(s, 1, source);
  }
  return absl::OkStatus();
}

// Between a space's own addresses and generic ones: global ones are the same.
template <bool kToGeneric>
Outcome RunCvta(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t* const d = warp.Row<uint64_t>(in.d);
  const uint64_t* const a = warp.Row<uint64_t>(in.a);
  const uint64_t window = static_cast<uint64_t>(in.offset);
  ForEachLane(mask, [=](int l) { d[l] = kToGeneric ? a[l] + window : a[l] - window; });
  return Outcome::kNext;
}

absl::Status DecodeCvta(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = HasWord(s, "to") ? RunCvta<false> : RunCvta<true>;
  in->offset = static_cast<int64_t>(HasWord(s, "shared")  ? kSharedWindow
                                    : HasWord(s, "local") ? kLocalWindow
                                                          : 0);
  decoder.ReadAll(s, Type::kB64, in);
  return s.words.back() == "u64" ? absl::OkStatus() : UnknownForm(s);
}

}  // namespace

void AddConvertOpcodes(OpcodeTable* table) {
  (*table)["mov"] = DecodeMov;
  (*table)["cvt"] = DecodeCvt;
  (*table)["cvta"] = DecodeCvta;
}

}  // namespace sluice::cuda_fake
