// Integer arithmetic: add sub mul mad div rem min max neg abs, dp2a dp4a.
#include <limits>
#include <type_traits>

#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

// Twice as wide, for high halves and wide products.
template <typename T>
struct Twice;
template <>
struct Twice<uint16_t> {
  using type = uint32_t;
};
template <>
struct Twice<int16_t> {
  using type = int32_t;
};
template <>
struct Twice<uint32_t> {
  using type = uint64_t;
};
template <>
struct Twice<int32_t> {
  using type = int64_t;
};
template <>
struct Twice<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Twice<int64_t> {
  using type = __int128;
};

// In 64 bits without a sign every operation below wraps as PTX's do.
template <typename T>
uint64_t Wide(T a) {
  return static_cast<uint64_t>(a);
}

struct Add {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(Wide(a) + Wide(b));
  }
};
struct Sub {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(Wide(a) - Wide(b));
  }
};
struct MulLow {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(Wide(a) * Wide(b));
  }
};
struct MulHigh {
  template <typename T>
  static T Do(T a, T b) {
    using W = typename Twice<T>::type;
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
  }
};
template <typename T>
struct MulWide {
  using W = typename Twice<T>::type;
  static W Do(T a, T b) { return static_cast<W>(a) * static_cast<W>(b); }
};
struct MadLow {
  template <typename T>
  static T Do(T a, T b, T c) {
    return static_cast<T>(Wide(a) * Wide(b) + Wide(c));
  }
};
template <typename T>
struct MadWide {
  using W = typename Twice<T>::type;
  static W Do(T a, T b, W c) { return static_cast<W>(Wide(static_cast<W>(a) * static_cast<W>(b)) + Wide(c)); }
};
// "Division by zero yields an unspecified, machine-specific value" (PTX ISA, div): all ones.
struct Div {
  template <typename T>
  static T Do(T a, T b) {
    if (b == 0) {
      return static_cast<T>(~T{0});
    }
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
      return static_cast<T>(0 - Wide(a));
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <typename T>
  static T Do(T a, T b) {
    if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) {
      return b == 0 ? a : T{0};
    }
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <typename T>
  static T Do(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <typename T>
  static T Do(T a, T b) {
    return a < b ? b : a;
  }
};
struct Neg {
  template <typename T>
  static T Do(T a) {
    return static_cast<T>(0 - Wide(a));
  }
};
struct Abs {
  template <typename T>
  static T Do(T a) {
    return a < 0 ? static_cast<T>(0 - Wide(a)) : a;
  }
};

template <typename Op>
Handler BinaryOf(Type type) {
  switch (type) {
    case Type::kS16:
      return Binary<int16_t, int16_t, int16_t, Op>;
    case Type::kU16:
      return Binary<uint16_t, uint16_t, uint16_t, Op>;
    case Type::kS32:
      return Binary<int32_t, int32_t, int32_t, Op>;
    case Type::kU32:
      return Binary<uint32_t, uint32_t, uint32_t, Op>;
    case Type::kS64:
      return Binary<int64_t, int64_t, int64_t, Op>;
    case Type::kU64:
      return Binary<uint64_t, uint64_t, uint64_t, Op>;
    default:
      return nullptr;
  }
}

template <typename Op>
Handler SignedUnaryOf(Type type) {
  switch (type) {
    case Type::kS16:
      return Unary<int16_t, int16_t, Op>;
    case Type::kS32:
      return Unary<int32_t, int32_t, Op>;
    case Type::kS64:
      return Unary<int64_t, int64_t, Op>;
    default:
      return nullptr;
  }
}

// opcode.type of two integers or, by DecodeFloat, floats.
template <typename Op>
absl::Status DecodeBinary(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  if (IsFloat(type)) {
    return DecodeFloat(decoder, s, in);
  }
  in->run = s.words.size() == 2 ? BinaryOf<Op>(type) : nullptr;
  decoder.ReadAll(s, type, in);
  return in->run != nullptr ? absl::OkStatus() : UnknownForm(s);
}

template <typename Op>
absl::Status DecodeUnary(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  if (IsFloat(type)) {
    return DecodeFloat(decoder, s, in);
  }
  in->run = s.words.size() == 2 ? SignedUnaryOf<Op>(type) : nullptr;
  decoder.ReadAll(s, type, in);
  return in->run != nullptr ? absl::OkStatus() : UnknownForm(s);
}

template <typename T>
Handler WideOf(bool mad) {
  using W = typename Twice<T>::type;
  return mad ? Ternary<W, T, W, MadWide<T>> : Binary<W, T, T, MulWide<T>>;
}

absl::Status DecodeWide(Decoder& decoder, const Statement& s, Instruction* in, bool mad) {
  const Type type = TypeOf(s.words.back());
  Type twice = Type::kNone;
  switch (type) {
    case Type::kU16:
      in->run = WideOf<uint16_t>(mad);
      twice = Type::kB32;
      break;
    case Type::kS16:
      in->run = WideOf<int16_t>(mad);
      twice = Type::kB32;
      break;
    case Type::kU32:
      in->run = WideOf<uint32_t>(mad);
      twice = Type::kB64;
      break;
    case Type::kS32:
      in->run = WideOf<int32_t>(mad);
      twice = Type::kB64;
      break;
    default:
      return UnknownForm(s);
  }
  in->d = decoder.Write(s, s.operands[0], twice);
  in->a = decoder.Read(s, 1, type);
  in->b = decoder.Read(s, 2, type);
  in->c = mad ? decoder.Read(s, 3, twice) : kNoRow;
  return absl::OkStatus();
}

absl::Status DecodeMul(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  if (IsFloat(type)) {
    return DecodeFloat(decoder, s, in);
  }
  if (s.words.size() == 3 && s.words[1] == "wide") {
    return DecodeWide(decoder, s, in, false);
  }
  if (s.words.size() == 3) {
    in->run = s.words[1] == "lo"   ? BinaryOf<MulLow>(type)
              : s.words[1] == "hi" ? BinaryOf<MulHigh>(type)
                                   : nullptr;
  }
  decoder.ReadAll(s, type, in);
  return in->run != nullptr ? absl::OkStatus() : UnknownForm(s);
}

absl::Status DecodeMad(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  if (s.words.size() == 3 && s.words[1] == "wide") {
    return DecodeWide(decoder, s, in, true);
  }
  if (s.words.size() == 3 && s.words[1] == "lo") {
    switch (BytesOf(type)) {
      case 2:
        in->run = Ternary<uint16_t, uint16_t, uint16_t, MadLow>;
        break;
      case 4:
        in->run = Ternary<uint32_t, uint32_t, uint32_t, MadLow>;
        break;
      default:
        in->run = Ternary<uint64_t, uint64_t, uint64_t, MadLow>;
    }
  }
  decoder.ReadAll(s, type, in);
  return in->run != nullptr && !IsFloat(type) ? absl::OkStatus() : UnknownForm(s);
}

// d = c + the sum of four products of bytes.
template <typename A, typename B>
struct Dp4a {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) {
      c += static_cast<uint32_t>(static_cast<A>(a >> i) * static_cast<B>(b >> i));
    }
    return c;
  }
};

// d = c + two products of halfwords of a with bytes of b, its lower two or its upper two.
template <typename A, typename B, int kFirst>
struct Dp2a {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    return c + static_cast<uint32_t>(static_cast<A>(a) * static_cast<B>(b >> kFirst)) +
           static_cast<uint32_t>(static_cast<A>(a >> 16) * static_cast<B>(b >> (kFirst + 8)));
  }
};

template <int kFirst>
Handler Dp2aOf(bool a_signed, bool b_signed) {
  return a_signed ? (b_signed ? Ternary<uint32_t, uint32_t, uint32_t, Dp2a<int16_t, int8_t, kFirst>>
                              : Ternary<uint32_t, uint32_t, uint32_t, Dp2a<int16_t, uint8_t, kFirst>>)
                  : (b_signed ? Ternary<uint32_t, uint32_t, uint32_t, Dp2a<uint16_t, int8_t, kFirst>>
                              : Ternary<uint32_t, uint32_t, uint32_t, Dp2a<uint16_t, uint8_t, kFirst>>);
}

absl::Status DecodeDp2a(Decoder& decoder, const Statement& s, Instruction* in) {
  if (s.words.size() != 4) {
    return UnknownForm(s);
  }
  const bool a = s.words[2] == "s32";
  const bool b = s.words[3] == "s32";
  in->run = s.words[1] == "lo" ? Dp2aOf<0>(a, b) : Dp2aOf<16>(a, b);
  decoder.ReadAll(s, Type::kB32, in);
  return absl::OkStatus();
}

absl::Status DecodeDp4a(Decoder& decoder, const Statement& s, Instruction* in) {
  const bool a = s.words[1] == "s32";
  const bool b = s.words.size() > 2 && s.words[2] == "s32";
  in->run = a ? (b ? Ternary<uint32_t, uint32_t, uint32_t, Dp4a<int8_t, int8_t>>
                   : Ternary<uint32_t, uint32_t, uint32_t, Dp4a<int8_t, uint8_t>>)
              : (b ? Ternary<uint32_t, uint32_t, uint32_t, Dp4a<uint8_t, int8_t>>
                   : Ternary<uint32_t, uint32_t, uint32_t, Dp4a<uint8_t, uint8_t>>);
  decoder.ReadAll(s, Type::kB32, in);
  return absl::OkStatus();
}

}  // namespace

void AddArithmeticOpcodes(OpcodeTable* table) {
  (*table)["add"] = DecodeBinary<Add>;
  (*table)["sub"] = DecodeBinary<Sub>;
  (*table)["div"] = DecodeBinary<Div>;
  (*table)["rem"] = DecodeBinary<Rem>;
  (*table)["min"] = DecodeBinary<Min>;
  (*table)["max"] = DecodeBinary<Max>;
  (*table)["mul"] = DecodeMul;
  (*table)["mad"] = DecodeMad;
  (*table)["neg"] = DecodeUnary<Neg>;
  (*table)["abs"] = DecodeUnary<Abs>;
  (*table)["dp2a"] = DecodeDp2a;
  (*table)["dp4a"] = DecodeDp4a;
}

}  // namespace sluice::cuda_fake
