// Values compared and chosen: setp selp.
#include <cmath>
#include <type_traits>

#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

// Comparisons; the ones that end in u are true for NaN too.
enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };

template <Compare kCompare, typename T>
bool Holds(T a, T b) {
  if constexpr (kCompare >= Compare::kEqu) {
    bool nan = false;
    if constexpr (std::is_floating_point_v<T>) {
      nan = std::isnan(a) || std::isnan(b);
    }
    if constexpr (kCompare == Compare::kNum || kCompare == Compare::kNan) {
      return nan == (kCompare == Compare::kNan);
    } else {
      constexpr auto kOrdered =
          static_cast<Compare>(static_cast<int>(kCompare) - static_cast<int>(Compare::kEqu));
      return nan || Holds<kOrdered>(a, b);
    }
  } else if constexpr (kCompare == Compare::kEq) {
    return a == b;
  } else if constexpr (kCompare == Compare::kNe) {
    return a < b || a > b;  // not of NaN
  } else if constexpr (kCompare == Compare::kLt) {
    return a < b;
  } else if constexpr (kCompare == Compare::kLe) {
    return a <= b;
  } else if constexpr (kCompare == Compare::kGt) {
    return a > b;
  } else {
    return a >= b;
  }
}

// d (and p: its opposite) = comparison, combined with the predicate c.
template <Compare kCompare, typename T>
Outcome RunSetp(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  const T* const a = warp.Row<T>(in.a);
  const T* const b = warp.Row<T>(in.b);
  uint32_t bits = 0;
  for (int l = 0; l < kWarpLanes; ++l) {
    bits |= static_cast<uint32_t>(Holds<kCompare>(a[l], b[l])) << l;
  }
  const auto combine = static_cast<Combine>(in.offset);
  const uint32_t third = combine == Combine::kNone ? 0 : warp.Mask(in.c) ^ (in.p_negated ? kFullMask : 0);
  const auto with = [&](uint32_t value) {
    return combine == Combine::kAnd   ? value & third
           : combine == Combine::kOr  ? value | third
           : combine == Combine::kXor ? value ^ third
                                      : value;
  };
  if (in.d != kNoRow) {
    warp.Mask(in.d) = (warp.Mask(in.d) & ~mask) | (with(bits) & mask);
  }
  if (in.p != kNoRow) {
    warp.Mask(in.p) = (warp.Mask(in.p) & ~mask) | (with(~bits) & mask);
  }
  return Outcome::kNext;
}

template <Compare kCompare>
Handler SetpOf(Type type) {
  switch (type) {
    case Type::kS16:
      return RunSetp<kCompare, int16_t>;
    case Type::kU16:
    case Type::kB16:
      return RunSetp<kCompare, uint16_t>;
    case Type::kS32:
      return RunSetp<kCompare, int32_t>;
    case Type::kU32:
    case Type::kB32:
      return RunSetp<kCompare, uint32_t>;
    case Type::kS64:
      return RunSetp<kCompare, int64_t>;
    case Type::kU64:
    case Type::kB64:
      return RunSetp<kCompare, uint64_t>;
    case Type::kF32:
      return RunSetp<kCompare, float>;
    case Type::kF64:
      return RunSetp<kCompare, double>;
    default:
      return nullptr;
  }
}

Handler SetpOf(absl::string_view compare, Type type) {
  using Maker = Handler (*)(Type);
  static const auto* const makers = new std::map<absl::string_view, Maker>{
      {"eq", SetpOf<Compare::kEq>},   {"ne", SetpOf<Compare::kNe>},   {"lt", SetpOf<Compare::kLt>},
      {"le", SetpOf<Compare::kLe>},   {"gt", SetpOf<Compare::kGt>},   {"ge", SetpOf<Compare::kGe>},
      {"lo", SetpOf<Compare::kLt>},   {"ls", SetpOf<Compare::kLe>},   {"hi", SetpOf<Compare::kGt>},
      {"hs", SetpOf<Compare::kGe>},   {"equ", SetpOf<Compare::kEqu>}, {"neu", SetpOf<Compare::kNeu>},
      {"ltu", SetpOf<Compare::kLtu>}, {"leu", SetpOf<Compare::kLeu>}, {"gtu", SetpOf<Compare::kGtu>},
      {"geu", SetpOf<Compare::kGeu>}, {"num", SetpOf<Compare::kNum>}, {"nan", SetpOf<Compare::kNan>}};
  const auto it = makers->find(compare);
  return it == makers->end() ? nullptr : it->second(type);
}

absl::Status DecodeSetp(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  in->run = SetpOf(s.words[1], type);
  Combine combine = Combine::kNone;
  if (s.words.size() == 4) {
    combine = s.words[2] == "and"   ? Combine::kAnd
              : s.words[2] == "or"  ? Combine::kOr
              : s.words[2] == "xor" ? Combine::kXor
                                    : Combine::kNone;
  }
  if (in->run == nullptr || s.words.size() > 4 || (s.words.size() == 4) != (combine != Combine::kNone)) {
    return UnknownForm(s);
  }
  const Operand& target = s.operands[0];
  const bool pair = target.kind == Operand::Kind::kPair;
  in->d = decoder.Write(s, pair ? target.parts[0] : target, Type::kPred);
  if (pair && target.parts[1].kind != Operand::Kind::kSink) {
    in->p = decoder.Write(s, target.parts[1], Type::kPred);
  }
  in->a = decoder.Read(s, 1, type);
  in->b = decoder.Read(s, 2, type);
  in->offset = static_cast<int64_t>(combine);
  if (combine != Combine::kNone) {
    in->c = decoder.Read(s, 3, Type::kPred);
    in->p_negated = s.operands[3].negated;
  }
  return absl::OkStatus();
}

template <typename T>
Outcome RunSelp(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  T* const d = warp.Row<T>(in.d);
  const T* const a = warp.Row<T>(in.a);
  const T* const b = warp.Row<T>(in.b);
  const uint32_t choice = warp.Mask(in.c);
  ForLanes(mask, [=](int l) { d[l] = (choice >> l & 1) != 0 ? a[l] : b[l]; });
  return Outcome::kNext;
}

absl::Status DecodeSelp(Decoder& decoder, const Statement& s, Instruction* in) {
  const Type type = TypeOf(s.words.back());
  in->run = BytesOf(type) == 2   ? RunSelp<uint16_t>
            : BytesOf(type) == 4 ? RunSelp<uint32_t>
                                 : RunSelp<uint64_t>;
  in->d = decoder.Write(s, s.operands[0], type);
  in->a = decoder.Read(s, 1, type);
  in->b = decoder.Read(s, 2, type);
  in->c = decoder.Read(s, 3, Type::kPred);
  return absl::OkStatus();
}

}  // namespace

void AddCompareOpcodes(OpcodeTable* table) {
  (*table)["setp"] = DecodeSetp;
  (*table)["selp"] = DecodeSelp;
}

}  // namespace sluice::cuda_fake
