// Loads and stores of every space, scalar and vector. Each lane's access is checked on its own.
#include <cstring>

#include "absl/strings/match.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

// Shared addresses may be in registers of 32 bits.
uint64_t AddressOf(Warp& warp, const Instruction& in, int lane) {
  const uint64_t base = in.rows[3] == 4 ? warp.Row<uint32_t>(in.a)[lane] : warp.Row<uint64_t>(in.a)[lane];
  return base + static_cast<uint64_t>(in.offset);
}

// A value of in.bytes from memory into a register of in.register_bytes.
void ToRegister(const Instruction& in, const uint8_t* from, uint8_t* to) {
  uint64_t value = 0;
  std::memcpy(&value, from, in.bytes);
  if (in.sign && in.bytes < 8) {
    const int unused = 64 - 8 * in.bytes;
    value = static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
  }
  std::memcpy(to, &value, in.register_bytes);
}

// The row of a vector's element; a holds the address, and rows[3] the bytes of its register.
uint32_t RowOf(const Instruction& in, int element) {
  const uint32_t rows[4] = {in.d, in.b, in.c, in.p};
  return rows[element];
}

template <bool kLoad>
Outcome RunMemory(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t total = uint32_t{in.bytes} * in.elements;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    uint8_t* const memory = execution.Access(warp, in, lane, in.space, AddressOf(warp, in, lane), total,
                                             kLoad ? AccessKind::kRead : AccessKind::kWrite);
    if (memory == nullptr) {
      return Outcome::kStop;
    }
    for (int element = 0; element < in.elements; ++element) {
      if (RowOf(in, element) == kNoRow) {
        continue;
      }
      uint8_t* const value = warp.Row<uint8_t>(RowOf(in, element)) + lane * in.register_bytes;
      if (kLoad) {
        ToRegister(in, memory + element * in.bytes, value);
      } else {
        std::memcpy(memory + element * in.bytes, value, in.bytes);
      }
    }
  }
  return Outcome::kNext;
}

// The parameters' space has addresses of its own, from 0 on: a register may hold one.
Outcome RunParam(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  const std::vector<uint8_t>& params = execution.spec().params;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint64_t at = in.a == kNoRow ? static_cast<uint64_t>(in.offset) : AddressOf(warp, in, lane);
    const uint64_t total = uint64_t{in.bytes} * in.elements;
    if (at > params.size() || total > params.size() - at) {
      return execution.Stop(Fault::kIllegalInstruction, Finding::kOutOfBounds, in,
                            "parameter outside of the block");
    }
    for (int element = 0; element < in.elements; ++element) {
      if (RowOf(in, element) == kNoRow) {
        continue;
      }
      ToRegister(in, params.data() + at + static_cast<uint64_t>(element) * in.bytes,
                 warp.Row<uint8_t>(RowOf(in, element)) + lane * in.register_bytes);
    }
  }
  return Outcome::kNext;
}

// Cache hints and the like change no value.
bool IsHint(absl::string_view word) {
  for (const absl::string_view hint : {"nc", "volatile", "weak", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}) {
    if (word == hint) {
      return true;
    }
  }
  return absl::StartsWith(word, "L1::") || absl::StartsWith(word, "L2::");
}

absl::Status DecodeMemory(Decoder& decoder, const Statement& s, Instruction* in) {
  const bool load = s.words[0] == "ld";
  const Type type = TypeOf(s.words.back());
  in->bytes = BytesOf(type);
  in->sign = IsSigned(type);
  in->space = Space::kGeneric;
  for (size_t i = 1; i + 1 < s.words.size(); ++i) {
    const absl::string_view word = s.words[i];
    if (word == "global" || word == "shared" || word == "local" || word == "const" || word == "param") {
      in->space = word == "global"   ? Space::kGlobal
                  : word == "shared" ? Space::kShared
                  : word == "local"  ? Space::kLocal
                  : word == "const"  ? Space::kConst
                                     : Space::kParam;
    } else if (word == "v2" || word == "v4") {
      in->elements = word == "v2" ? 2 : 4;
    } else if (!IsHint(word)) {
      return UnknownForm(s);
    }
  }
  const Operand& value = s.operands[load ? 0 : 1];
  uint8_t address_bytes = 8;
  decoder.Address(s, s.operands[load ? 1 : 0], in, &address_bytes);
  in->rows[3] = address_bytes;
  if (in->bytes == 0 || (value.kind == Operand::Kind::kVector ? value.parts.size() : 1) != in->elements) {
    return UnknownForm(s);
  }
  uint32_t* const rows[4] = {&in->d, &in->b, &in->c, &in->p};
  for (size_t element = 0; element < in->elements; ++element) {
    const Operand& part = value.kind == Operand::Kind::kVector ? value.parts[element] : value;
    if (!load && part.kind == Operand::Kind::kImmediate) {
      in->register_bytes = std::max<uint8_t>(in->bytes, 2);
      *rows[element] = decoder.Read(s, part, type);
    } else {
      *rows[element] = decoder.AnyRegister(s, part, &in->register_bytes);
    }
  }
  if (in->register_bytes < in->bytes) {
    return UnknownForm(s);
  }
  in->run = in->space == Space::kParam ? RunParam : load ? RunMemory<true> : RunMemory<false>;
  return load || in->space != Space::kParam ? absl::OkStatus() : UnknownForm(s);
}

Outcome RunNothing(Execution&, Warp&, const Instruction&, uint32_t) { return Outcome::kNext; }

// A prefetch changes no value.
absl::Status DecodePrefetch(Decoder&, const Statement&, Instruction* in) {
  in->run = RunNothing;
  return absl::OkStatus();
}

}  // namespace

void AddMemoryOpcodes(OpcodeTable* table) {
  (*table)["ld"] = DecodeMemory;
  (*table)["st"] = DecodeMemory;
  (*table)["prefetch"] = DecodePrefetch;
}

}  // namespace sluice::cuda_fake
