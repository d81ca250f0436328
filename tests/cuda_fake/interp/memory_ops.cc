// Loads and stores of every space, scalar and vector.
#include <bit>
#include <cstring>

#include "absl/strings/match.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

// Shared addresses may be in registers of 32 bits.
void AddressesOf(Warp& warp, const Instruction& in, uint64_t* addresses) {
  const auto offset = static_cast<uint64_t>(in.offset);
  if (in.rows[3] == 4) {
    const uint32_t* const base = warp.Row<uint32_t>(in.a);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      addresses[lane] = base[lane] + offset;
    }
  } else {
    const uint64_t* const base = warp.Row<uint64_t>(in.a);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      addresses[lane] = base[lane] + offset;
    }
  }
}

// The row of a vector's element; a holds the address, and rows[3] the bytes of its register.
uint32_t RowOf(const Instruction& in, int element) {
  const uint32_t rows[4] = {in.d, in.b, in.c, in.p};
  return rows[element];
}

template <typename M>
M From(const uint8_t* memory, int element) {
  M value;
  std::memcpy(&value, memory + static_cast<size_t>(element) * sizeof(M), sizeof(M));
  return value;
}

// All 32 lanes, one behind the other.
template <typename M, typename R, int kElements>
void LoadRun(R* row, const uint8_t* first, int element) {
  M values[kWarpLanes * kElements];
  std::memcpy(values, first, sizeof(values));
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    row[lane] = static_cast<R>(values[lane * kElements + element]);
  }
}
template <typename M, typename R>
void LoadRun(R* row, const uint8_t* first, int element, int elements) {
  return elements == 1   ? LoadRun<M, R, 1>(row, first, element)
         : elements == 2 ? LoadRun<M, R, 2>(row, first, element)
                         : LoadRun<M, R, 4>(row, first, element);
}

// Values of type M in memory, R in registers; M's sign is extended.
template <typename M, typename R>
void Load(Warp& warp, const Instruction& in, uint32_t mask, const LanePlaces& places) {
  using Pattern = LanePlaces::Pattern;
  for (int element = 0; element < in.elements; ++element) {
    if (RowOf(in, element) == kNoRow) {
      continue;
    }
    R* const row = warp.Row<R>(RowOf(in, element));
    if (places.pattern == Pattern::kSame) {
      const R value = static_cast<R>(From<M>(places.first, element));
      SetLanes(row, mask, [=](int) { return value; });
    } else if (places.pattern == Pattern::kRun && mask == kFullMask) {
      LoadRun<M, R>(row, places.first, element, in.elements);
    } else if (places.pattern == Pattern::kRun) {
      ForEachLane(mask, [&](int lane) {
        row[lane] = static_cast<R>(From<M>(places.first, (lane - places.lowest) * in.elements + element));
      });
    } else {
      ForEachLane(mask, [&](int lane) { row[lane] = static_cast<R>(From<M>(places.lanes[lane], element)); });
    }
  }
}

template <typename M, typename R>
void Store(Warp& warp, const Instruction& in, uint32_t mask, const LanePlaces& places) {
  for (int element = 0; element < in.elements; ++element) {
    if (RowOf(in, element) == kNoRow) {
      continue;
    }
    const R* const row = warp.Row<R>(RowOf(in, element));
    const auto store = [&](int lane, uint8_t* lane_bytes) {
      const M value = static_cast<M>(row[lane]);
      std::memcpy(lane_bytes + static_cast<size_t>(element) * sizeof(M), &value, sizeof(M));
    };
    if (places.pattern == LanePlaces::Pattern::kRun && mask == kFullMask && in.elements == 1) {
      M values[kWarpLanes];
      for (int lane = 0; lane < kWarpLanes; ++lane) {
        values[lane] = static_cast<M>(row[lane]);
      }
      std::memcpy(places.first, values, sizeof(values));
    } else if (places.pattern == LanePlaces::Pattern::kApart) {
      ForEachLane(mask, [&](int lane) { store(lane, places.lanes[lane]); });
    } else {
      const size_t step = in.elements * sizeof(M);
      ForEachLane(mask, [&](int lane) {
        store(lane, places.first + static_cast<size_t>(lane - places.lowest) * step);
      });
    }
  }
}

template <bool kLoad, typename M, typename R>
Outcome RunMemory(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t addresses[kWarpLanes];
  AddressesOf(warp, in, addresses);
  LanePlaces places;
  execution.Places(warp, in, mask, in.space, addresses, static_cast<uint32_t>(sizeof(M)) * in.elements,
                   kLoad ? AccessKind::kRead : AccessKind::kWrite, &places);
  if (places.pattern == LanePlaces::Pattern::kStopped) {
    return Outcome::kStop;
  }
  if constexpr (kLoad) {
    Load<M, R>(warp, in, mask, places);
  } else {
    Store<M, R>(warp, in, mask, places);
  }
  return Outcome::kNext;
}

// The parameters' space has addresses of its own, from 0 on: a register may hold one.
template <typename M, typename R>
Outcome RunParam(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  const std::vector<uint8_t>& params = execution.spec().params;
  uint64_t addresses[kWarpLanes];
  AddressesOf(warp, in, addresses);
  LanePlaces places;
  places.lowest = std::countr_zero(mask);
  const uint64_t first = addresses[places.lowest];
  const uint64_t total = sizeof(M) * in.elements;
  bool same = true;
  bool inside = true;
  ForEachLane(mask, [&](int lane) {
    same = same && addresses[lane] == first;
    inside = inside && addresses[lane] <= params.size() && total <= params.size() - addresses[lane];
    places.lanes[lane] = const_cast<uint8_t*>(params.data()) + addresses[lane];
  });
  if (!inside) {
    return execution.Stop(Fault::kIllegalInstruction, Finding::kOutOfBounds, in,
                          "parameter outside of the block");
  }
  places.first = places.lanes[places.lowest];
  places.pattern = same ? LanePlaces::Pattern::kSame : LanePlaces::Pattern::kApart;
  Load<M, R>(warp, in, mask, places);
  return Outcome::kNext;
}

template <typename M, typename R>
Handler HandlerOf(bool load, bool param) {
  return param ? RunParam<M, R> : load ? RunMemory<true, M, R> : RunMemory<false, M, R>;
}

// By the bytes in memory, whether their sign is extended, and the bytes in registers.
Handler HandlerFor(const Instruction& in, bool load) {
  const bool param = in.space == Space::kParam;
  switch (in.bytes * 100 + in.register_bytes * 10 + (in.sign && in.register_bytes > in.bytes ? 1 : 0)) {
    case 120:
      return HandlerOf<uint8_t, uint16_t>(load, param);
    case 121:
      return HandlerOf<int8_t, uint16_t>(load, param);
    case 140:
      return HandlerOf<uint8_t, uint32_t>(load, param);
    case 141:
      return HandlerOf<int8_t, uint32_t>(load, param);
    case 180:
      return HandlerOf<uint8_t, uint64_t>(load, param);
    case 181:
      return HandlerOf<int8_t, uint64_t>(load, param);
    case 220:
      return HandlerOf<uint16_t, uint16_t>(load, param);
    case 240:
      return HandlerOf<uint16_t, uint32_t>(load, param);
    case 241:
      return HandlerOf<int16_t, uint32_t>(load, param);
    case 280:
      return HandlerOf<uint16_t, uint64_t>(load, param);
    case 281:
      return HandlerOf<int16_t, uint64_t>(load, param);
    case 440:
      return HandlerOf<uint32_t, uint32_t>(load, param);
    case 480:
      return HandlerOf<uint32_t, uint64_t>(load, param);
    case 481:
      return HandlerOf<int32_t, uint64_t>(load, param);
    case 880:
      return HandlerOf<uint64_t, uint64_t>(load, param);
    default:
      return nullptr;
  }
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
  in->run = HandlerFor(*in, load);
  return in->run != nullptr && (load || in->space != Space::kParam) ? absl::OkStatus() : UnknownForm(s);
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
