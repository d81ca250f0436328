// Bits and choices: and or xor not shl shr popc clz brev bfind bfe bfi prmt lop3 shf.
#include <cmath>
#include <type_traits>

#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

struct And {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T Do(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// "Shift amounts greater than the register width N are clamped to N" (PTX ISA, shl and shr).
struct Shl {
  template <typename T>
  static T Do(T a, uint32_t b) {
    return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<uint64_t>(a) << b);
  }
};
struct Shr {
  template <typename T>
  static T Do(T a, uint32_t b) {
    if (b >= 8 * sizeof(T)) {
      return a < 0 ? static_cast<T>(-1) : T{0};
    }
    return static_cast<T>(a >> b);
  }
};
struct Not {
  template <typename T>
  static T Do(T a) {
    return static_cast<T>(~a);
  }
};
struct Popc {
  static uint32_t Do(uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); }
  static uint32_t Do(uint64_t a) { return static_cast<uint32_t>(__builtin_popcountll(a)); }
};
struct Clz {
  static uint32_t Do(uint32_t a) { return a == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(a)); }
  static uint32_t Do(uint64_t a) { return a == 0 ? 64 : static_cast<uint32_t>(__builtin_clzll(a)); }
};
struct Brev {
  template <typename T>
  static T Do(T a) {
    T r = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i) {
      r = static_cast<T>(r << 1 | (a >> i & 1));
    }
    return r;
  }
};
// The highest bit that is set (that differs from the sign); .shiftamt: how far it is from the top. None: -1.
template <bool kShift>
struct Bfind {
  static uint32_t Do(uint32_t a) {
    return a == 0 ? kFullMask : static_cast<uint32_t>(kShift ? __builtin_clz(a) : 31 - __builtin_clz(a));
  }
  static uint32_t Do(int32_t a) { return Do(static_cast<uint32_t>(a < 0 ? ~a : a)); }
};
struct Bfe {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t length = c & 255;
    const uint32_t shifted = Shr::Do(a, b & 255);
    return length >= 32 ? shifted : shifted & ((1u << length) - 1);
  }
  static int32_t Do(int32_t a, uint32_t b, uint32_t c) {
    const uint32_t position = b & 255;
    const uint32_t length = c & 255;
    if (length == 0) {
      return 0;
    }
    const uint32_t last = std::min(position + length - 1, 31u);
    const uint32_t sign = static_cast<uint32_t>(a) >> last & 1;
    const uint32_t bits = Bfe::Do(static_cast<uint32_t>(a), b, c);
    const uint32_t kept = position >= 32 ? 0 : std::min(length, 32 - position);
    return static_cast<int32_t>(kept >= 32 || sign == 0 ? bits : bits | ~((1u << kept) - 1));
  }
};
// The lowest `length` bits of a put into b at `position`.
template <typename T>
T InsertBits(T a, T b, uint32_t position, uint32_t length) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  position &= 255;
  length &= 255;
  const T mask = length >= kBits ? ~T{0} : static_cast<T>((T{1} << length) - 1);
  return position >= kBits ? b : static_cast<T>((b & ~(mask << position)) | ((a & mask) << position));
}
// Bytes of {b, a} by the selectors of c; bit 3 of a selector spreads the byte's sign.
struct Prmt {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t both = uint64_t{b} << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t selector = c >> (4 * i) & 15;
      uint8_t byte = static_cast<uint8_t>(both >> (8 * (selector & 7)));
      if ((selector & 8) != 0) {
        byte = (byte & 0x80) != 0 ? 0xff : 0;
      }
      r |= static_cast<uint32_t>(byte) << (8 * i);
    }
    return r;
  }
};
struct ShfLeft {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>((uint64_t{b} << 32 | a) << (c & 31) >> 32);
  }
};
struct ShfRight {
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (c & 31));
  }
};

// On predicates: one mask for all lanes.
template <typename Op>
Outcome MaskBinary(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t value = Op::Do(warp.Mask(in.a), warp.Mask(in.b));
  warp.Mask(in.d) = (warp.Mask(in.d) & ~mask) | (value & mask);
  return Outcome::kNext;
}
Outcome MaskNot(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  warp.Mask(in.d) = (warp.Mask(in.d) & ~mask) | (~warp.Mask(in.a) & mask);
  return Outcome::kNext;
}

template <typename Op>
absl::Status DecodeBits(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  decoder.ReadAll(s, type, in);
  if (type == Type::kPred) {
    in->run = MaskBinary<Op>;
  } else if (BytesOf(type) == 2) {
    in->run = Binary<uint16_t, uint16_t, uint16_t, Op>;
  } else if (BytesOf(type) == 4) {
    in->run = Binary<uint32_t, uint32_t, uint32_t, Op>;
  } else {
    in->run = Binary<uint64_t, uint64_t, uint64_t, Op>;
  }
  return absl::OkStatus();
}

absl::Status DecodeNot(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  decoder.ReadAll(s, type, in);
  in->run = type == Type::kPred  ? MaskNot
            : BytesOf(type) == 2 ? Unary<uint16_t, uint16_t, Not>
            : BytesOf(type) == 4 ? Unary<uint32_t, uint32_t, Not>
                                 : Unary<uint64_t, uint64_t, Not>;
  return absl::OkStatus();
}

template <typename T, typename Op>
Handler ShiftOf() {
  return Binary<T, T, uint32_t, Op>;
}

absl::Status DecodeShift(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  const bool left = s.words[0] == "shl";
  switch (BytesOf(type)) {
    case 2:
      in->run = left             ? ShiftOf<uint16_t, Shl>()
                : IsSigned(type) ? ShiftOf<int16_t, Shr>()
                                 : ShiftOf<uint16_t, Shr>();
      break;
    case 4:
      in->run = left             ? ShiftOf<uint32_t, Shl>()
                : IsSigned(type) ? ShiftOf<int32_t, Shr>()
                                 : ShiftOf<uint32_t, Shr>();
      break;
    default:
      in->run = left             ? ShiftOf<uint64_t, Shl>()
                : IsSigned(type) ? ShiftOf<int64_t, Shr>()
                                 : ShiftOf<uint64_t, Shr>();
  }
  in->d = decoder.Write(s, s.operands[0], type);
  in->a = decoder.Read(s, 1, type);
  in->b = decoder.Read(s, 2, Type::kU32);
  return absl::OkStatus();
}

// popc, clz: the result has 32 bits whatever the type.
template <typename Op>
absl::Status DecodeCount(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  in->run = BytesOf(type) == 4 ? Unary<uint32_t, uint32_t, Op> : Unary<uint32_t, uint64_t, Op>;
  in->d = decoder.Write(s, s.operands[0], Type::kB32);
  in->a = decoder.Read(s, 1, type);
  return absl::OkStatus();
}

absl::Status DecodeBrev(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  in->run = BytesOf(type) == 4 ? Unary<uint32_t, uint32_t, Brev> : Unary<uint64_t, uint64_t, Brev>;
  decoder.ReadAll(s, type, in);
  return absl::OkStatus();
}

absl::Status DecodeBfind(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  const bool shift = s.words[1] == "shiftamt";
  if (type == Type::kU32) {
    in->run = shift ? Unary<uint32_t, uint32_t, Bfind<true>> : Unary<uint32_t, uint32_t, Bfind<false>>;
  } else if (type == Type::kS32) {
    in->run = shift ? Unary<uint32_t, int32_t, Bfind<true>> : Unary<uint32_t, int32_t, Bfind<false>>;
  } else {
    return UnknownForm(s);
  }
  decoder.ReadAll(s, type, in);
  return absl::OkStatus();
}

Outcome RunBfe(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t* const b = warp.Row<uint32_t>(in.b);
  const uint32_t* const c = warp.Row<uint32_t>(in.c);
  if (in.sign) {
    int32_t* const d = warp.Row<int32_t>(in.d);
    const int32_t* const a = warp.Row<int32_t>(in.a);
    ForLanes(mask, [=](int l) { d[l] = Bfe::Do(a[l], b[l], c[l]); });
  } else {
    uint32_t* const d = warp.Row<uint32_t>(in.d);
    const uint32_t* const a = warp.Row<uint32_t>(in.a);
    ForLanes(mask, [=](int l) { d[l] = Bfe::Do(a[l], b[l], c[l]); });
  }
  return Outcome::kNext;
}

absl::Status DecodeBfe(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  in->run = RunBfe;
  in->sign = IsSigned(type);
  decoder.ReadAll(s, type, in);
  return BytesOf(type) == 4 ? absl::OkStatus() : UnknownForm(s);
}

template <typename T>
Outcome RunBfi(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  T* const d = warp.Row<T>(in.d);
  const T* const a = warp.Row<T>(in.a);
  const T* const b = warp.Row<T>(in.b);
  const uint32_t* const position = warp.Row<uint32_t>(in.c);
  const uint32_t* const length = warp.Row<uint32_t>(in.rows[0]);
  ForLanes(mask, [=](int l) { d[l] = InsertBits(a[l], b[l], position[l], length[l]); });
  return Outcome::kNext;
}

absl::Status DecodeBfi(Decoder& decoder, const Statement& s, Instruction* in) {
  const bool wide = s.opcode == "bfi.b64";
  if ((!wide && s.opcode != "bfi.b32") || s.operands.size() != 5) {
    return UnknownForm(s);
  }
  const Type type = wide ? Type::kB64 : Type::kB32;
  in->run = wide ? RunBfi<uint64_t> : RunBfi<uint32_t>;
  in->d = decoder.Write(s, s.operands[0], type);
  in->a = decoder.Read(s, 1, type);
  in->b = decoder.Read(s, 2, type);
  in->c = decoder.Read(s, 3, Type::kB32);
  in->rows[0] = decoder.Read(s, 4, Type::kB32);
  return absl::OkStatus();
}

template <typename Op>
absl::Status DecodeTernary32(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = Ternary<uint32_t, uint32_t, uint32_t, Op>;
  decoder.ReadAll(s, Type::kB32, in);
  return s.words.back() == "b32" && s.words.size() == 2 ? absl::OkStatus() : UnknownForm(s);
}

absl::Status DecodeShf(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = s.words[1] == "l" ? Ternary<uint32_t, uint32_t, uint32_t, ShfLeft>
                              : Ternary<uint32_t, uint32_t, uint32_t, ShfRight>;
  decoder.ReadAll(s, Type::kB32, in);
  return s.words[2] == "wrap" ? absl::OkStatus() : UnknownForm(s);
}

// Any function of three bits, by its table.
Outcome RunLop3(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* const d = warp.Row<uint32_t>(in.d);
  const uint32_t* const a = warp.Row<uint32_t>(in.a);
  const uint32_t* const b = warp.Row<uint32_t>(in.b);
  const uint32_t* const c = warp.Row<uint32_t>(in.c);
  ForLanes(mask, [&](int l) {
    uint32_t r = 0;
    for (int row = 0; row < 8; ++row) {
      if ((in.offset >> row & 1) != 0) {
        r |= ((row & 4) != 0 ? a[l] : ~a[l]) & ((row & 2) != 0 ? b[l] : ~b[l]) &
             ((row & 1) != 0 ? c[l] : ~c[l]);
      }
    }
    d[l] = r;
  });
  return Outcome::kNext;
}

absl::Status DecodeLop3(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = RunLop3;
  decoder.ReadAll(s, Type::kB32, in);
  if (s.words.size() != 2 || s.operands.size() != 5) {
    return UnknownForm(s);
  }
  in->offset = std::stoll(s.operands[4].text, nullptr, 0);
  return absl::OkStatus();
}

}  // namespace

void AddLogicOpcodes(OpcodeTable* table) {
  (*table)["and"] = DecodeBits<And>;
  (*table)["or"] = DecodeBits<Or>;
  (*table)["xor"] = DecodeBits<Xor>;
  (*table)["not"] = DecodeNot;
  (*table)["shl"] = DecodeShift;
  (*table)["shr"] = DecodeShift;
  (*table)["popc"] = DecodeCount<Popc>;
  (*table)["clz"] = DecodeCount<Clz>;
  (*table)["brev"] = DecodeBrev;
  (*table)["bfind"] = DecodeBfind;
  (*table)["bfe"] = DecodeBfe;
  (*table)["bfi"] = DecodeBfi;
  (*table)["prmt"] = DecodeTernary32<Prmt>;
  (*table)["shf"] = DecodeShf;
  (*table)["lop3"] = DecodeLop3;
}

}  // namespace sluice::cuda_fake
