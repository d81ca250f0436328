// Atomics: atom and red, lane by lane in order of lanes. membar and fence are nothing here: blocks do not run
// side by side, and what threads of a block see of each other is the barriers' business.
#include <cstring>

#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

enum class AtomicOp : int64_t { kAdd, kMin, kMax, kExch, kCas, kAnd, kOr, kXor, kInc };

template <typename T>
T Apply(AtomicOp op, T old, T b, T c) {
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case AtomicOp::kAnd:
        return old & b;
      case AtomicOp::kOr:
        return old | b;
      case AtomicOp::kXor:
        return old ^ b;
      case AtomicOp::kInc:
        return old >= b ? 0 : old + 1;
      case AtomicOp::kAdd:
        return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(b));
      default:
        break;
    }
  }
  switch (op) {
    case AtomicOp::kAdd:
      return old + b;
    case AtomicOp::kMin:
      return b < old ? b : old;
    case AtomicOp::kMax:
      return old < b ? b : old;
    case AtomicOp::kCas:
      return old == b ? c : old;
    default:
      return b;
  }
}

template <typename T>
Outcome RunAtomic(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  const auto op = static_cast<AtomicOp>(in.rows[0]);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint64_t base = in.rows[3] == 4 ? warp.Row<uint32_t>(in.a)[lane] : warp.Row<uint64_t>(in.a)[lane];
    uint8_t* const memory = execution.Access(
        warp, in, lane, in.space, base + static_cast<uint64_t>(in.offset), sizeof(T), AccessKind::kAtomic);
    if (memory == nullptr) {
      return Outcome::kStop;
    }
    T old;
    std::memcpy(&old, memory, sizeof(T));
    const T next = Apply(op, old, warp.Row<T>(in.b)[lane], in.c == kNoRow ? T{} : warp.Row<T>(in.c)[lane]);
    std::memcpy(memory, &next, sizeof(T));
    if (in.d != kNoRow) {
      warp.Row<T>(in.d)[lane] = old;
    }
  }
  return Outcome::kNext;
}

Handler AtomicOf(Type type, AtomicOp op) {
  const bool sums = op == AtomicOp::kAdd || op == AtomicOp::kExch;
  switch (type) {
    case Type::kU32:
    case Type::kB32:
      return RunAtomic<uint32_t>;
    case Type::kS32:
      return RunAtomic<int32_t>;
    case Type::kU64:
    case Type::kB64:
      return RunAtomic<uint64_t>;
    case Type::kS64:
      return RunAtomic<int64_t>;
    case Type::kF32:
      return sums ? RunAtomic<float> : nullptr;
    case Type::kF64:
      return sums ? RunAtomic<double> : nullptr;
    default:
      return nullptr;
  }
}

absl::Status DecodeAtomic(Decoder& decoder, const Statement& s, Instruction* in) {
  static const auto* const ops = new std::map<absl::string_view, AtomicOp>{
      {"add", AtomicOp::kAdd},   {"min", AtomicOp::kMin}, {"max", AtomicOp::kMax},
      {"exch", AtomicOp::kExch}, {"cas", AtomicOp::kCas}, {"and", AtomicOp::kAnd},
      {"or", AtomicOp::kOr},     {"xor", AtomicOp::kXor}, {"inc", AtomicOp::kInc}};
  const bool red = s.words[0] == "red";
  const Type type = TypeOf(s.words.back());
  bool known = false;
  for (size_t i = 1; i + 1 < s.words.size(); ++i) {
    const absl::string_view word = s.words[i];
    if (const auto op = ops->find(word); op != ops->end()) {
      in->rows[0] = static_cast<uint32_t>(op->second);
      known = true;
    } else if (word == "global" || word == "shared") {
      in->space = word == "global" ? Space::kGlobal : Space::kShared;
    } else if (word != "relaxed" && word != "acq_rel" && word != "acquire" && word != "release" &&
               word != "gpu" && word != "cta" && word != "sys") {
      return UnknownForm(s);
    }
  }
  const size_t first = red ? 0 : 1;
  if (!red && s.operands[0].kind != Operand::Kind::kSink) {
    in->d = decoder.Write(s, s.operands[0], type);
  }
  uint8_t address_bytes = 8;
  decoder.Address(s, s.operands[first], in, &address_bytes);
  in->rows[3] = address_bytes;
  in->b = decoder.Read(s, first + 1, type);
  if (s.operands.size() > first + 2) {
    in->c = decoder.Read(s, first + 2, type);
  }
  in->run = known ? AtomicOf(type, static_cast<AtomicOp>(in->rows[0])) : nullptr;
  return in->run != nullptr ? absl::OkStatus() : UnknownForm(s);
}

Outcome RunNothing(Execution&, Warp&, const Instruction&, uint32_t) { return Outcome::kNext; }

absl::Status DecodeFence(Decoder&, const Statement&, Instruction* in) {
  in->run = RunNothing;
  return absl::OkStatus();
}

}  // namespace

void AddAtomicOpcodes(OpcodeTable* table) {
  (*table)["atom"] = DecodeAtomic;
  (*table)["red"] = DecodeAtomic;
  (*table)["membar"] = DecodeFence;
  (*table)["fence"] = DecodeFence;
}

}  // namespace sluice::cuda_fake
