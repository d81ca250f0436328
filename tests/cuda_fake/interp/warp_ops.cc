// Instructions that lanes of a warp run together: shfl, vote, activemask, redux, mma.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {

// "shfl.sync will cause the executing thread to wait until all non-exited threads corresponding to membermask
// have executed shfl.sync with the same qualifiers and the same membermask value ... the behavior is
// undefined if the executing thread is not in the membermask" (PTX ISA, shfl.sync; the same of vote.sync and
// bar.warp.sync).
bool GatherLanes(Execution& execution, Warp& warp, const Instruction& in, uint32_t* mask) {
  // Those who came before wait at this instruction: they are of the party.
  if (Warp::Group* const waiting = warp.WaitingAt(warp.current->pc);
      waiting != nullptr && waiting != warp.current) {
    warp.current->mask |= waiting->mask;
    *mask |= waiting->mask;
    const bool last = warp.current == &warp.groups.back();
    *waiting = warp.groups.back();
    warp.groups.pop_back();
    if (last) {
      warp.current = waiting;
    }
  }
  const uint32_t* const named = warp.Row<uint32_t>(in.c);
  const uint32_t first = named[__builtin_ctz(*mask)];
  uint32_t differ = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    differ |= (*mask >> lane & 1) != 0 ? named[lane] ^ first : 0;
  }
  if (differ != 0) {
    execution.ReportAt(Finding::kMask, in,
                       absl::StrCat("lanes of warp ", warp.index, " name different masks"));
  }
  if ((*mask & ~first) != 0) {
    execution.ReportAt(Finding::kMask, in,
                       absl::StrCat("lanes ", absl::Hex(*mask & ~first), " of warp ", warp.index,
                                    " execute it and are not in its mask ", absl::Hex(first)));
  }
  if ((first & warp.live & ~*mask) != 0) {
    warp.Wait(warp.current, *mask);
    return false;
  }
  return true;
}

namespace {

enum class ShuffleMode : uint32_t { kUp, kDown, kXor, kIndex };

// The lane that each lane reads from, and whether it lies in range (PTX ISA, shfl.sync, semantics).
template <ShuffleMode kMode>
uint32_t SourceLanes(const uint32_t* b, const uint32_t* c, int* from) {
  uint32_t in_range = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int value = static_cast<int>(b[lane] & 31);
    const int clamp = static_cast<int>(c[lane] & 31);
    const int segment = static_cast<int>(c[lane] >> 8 & 31);
    const int highest = (lane & segment) | (clamp & ~segment);
    const int lowest = lane & segment;
    const int source = kMode == ShuffleMode::kUp     ? lane - value
                       : kMode == ShuffleMode::kDown ? lane + value
                       : kMode == ShuffleMode::kXor  ? lane ^ value
                                                     : lowest | (value & ~segment);
    const bool inside = kMode == ShuffleMode::kUp ? source >= highest : source <= highest;
    from[lane] = inside ? source : lane;
    in_range |= static_cast<uint32_t>(inside) << lane;
  }
  return in_range;
}

template <ShuffleMode kMode>
Outcome RunShuffle(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!GatherLanes(execution, warp, in, &mask)) {
    return Outcome::kJumped;
  }
  int from[kWarpLanes];
  uint32_t values[kWarpLanes];
  std::copy_n(warp.Row<uint32_t>(in.a), kWarpLanes, values);
  const uint32_t in_range =
      SourceLanes<kMode>(warp.Row<uint32_t>(in.b), warp.Row<uint32_t>(in.rows[1]), from);
  if (mask != kFullMask) {
    ForEachLane(mask, [&](int lane) {
      if ((mask >> from[lane] & 1) == 0) {
        execution.ReportAt(Finding::kMask, in,
                           absl::StrCat("lane ", lane, " of warp ", warp.index, " reads from lane ",
                                        from[lane], ", which takes no part"));
      }
    });
  }
  SetLanes(warp.Row<uint32_t>(in.d), mask, [&](int lane) { return values[from[lane] & 31]; });
  if (in.p != kNoRow) {
    warp.Mask(in.p) = (warp.Mask(in.p) & ~mask) | (in_range & mask);
  }
  return Outcome::kNext;
}

Handler ShuffleOf(ShuffleMode mode) {
  switch (mode) {
    case ShuffleMode::kUp:
      return RunShuffle<ShuffleMode::kUp>;
    case ShuffleMode::kDown:
      return RunShuffle<ShuffleMode::kDown>;
    case ShuffleMode::kXor:
      return RunShuffle<ShuffleMode::kXor>;
    default:
      return RunShuffle<ShuffleMode::kIndex>;
  }
}

absl::Status DecodeShuffle(Decoder& decoder, const Statement& s, Instruction* in) {
  static const auto* const modes = new std::map<absl::string_view, ShuffleMode>{{"up", ShuffleMode::kUp},
                                                                                {"down", ShuffleMode::kDown},
                                                                                {"bfly", ShuffleMode::kXor},
                                                                                {"idx", ShuffleMode::kIndex}};
  if (s.words.size() != 4 || s.words[1] != "sync" || !modes->contains(s.words[2]) || s.operands.size() != 5) {
    return UnknownForm(s);
  }
  const bool pair = s.operands[0].kind == Operand::Kind::kPair;
  in->d = decoder.Write(s, pair ? s.operands[0].parts[0] : s.operands[0], Type::kB32);
  if (pair && s.operands[0].parts[1].kind != Operand::Kind::kSink) {
    in->p = decoder.Write(s, s.operands[0].parts[1], Type::kPred);
  }
  in->a = decoder.Read(s, 1, Type::kB32);
  in->b = decoder.Read(s, 2, Type::kB32);
  in->rows[1] = decoder.Read(s, 3, Type::kB32);
  in->c = decoder.Read(s, 4, Type::kB32);
  in->run = ShuffleOf(modes->find(s.words[2])->second);
  return absl::OkStatus();
}

enum class Vote : uint32_t { kAll, kAny, kUni, kBallot };

Outcome RunVote(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!GatherLanes(execution, warp, in, &mask)) {
    return Outcome::kJumped;
  }
  const uint32_t votes = (warp.Mask(in.a) ^ (in.p_negated ? kFullMask : 0)) & mask;
  const auto vote = static_cast<Vote>(in.rows[0]);
  if (vote == Vote::kBallot) {
    ForEachLane(mask, [&](int lane) { warp.Row<uint32_t>(in.d)[lane] = votes; });
    return Outcome::kNext;
  }
  const bool result = vote == Vote::kAll   ? votes == mask
                      : vote == Vote::kAny ? votes != 0
                                           : votes == 0 || votes == mask;
  warp.Mask(in.d) = (warp.Mask(in.d) & ~mask) | (result ? mask : 0);
  return Outcome::kNext;
}

absl::Status DecodeVote(Decoder& decoder, const Statement& s, Instruction* in) {
  static const auto* const votes = new std::map<absl::string_view, Vote>{
      {"all", Vote::kAll}, {"any", Vote::kAny}, {"uni", Vote::kUni}, {"ballot", Vote::kBallot}};
  if (s.words.size() != 4 || s.words[1] != "sync" || !votes->contains(s.words[2]) || s.operands.size() != 3) {
    return UnknownForm(s);
  }
  const Vote vote = votes->find(s.words[2])->second;
  in->rows[0] = static_cast<uint32_t>(vote);
  in->d = decoder.Write(s, s.operands[0], vote == Vote::kBallot ? Type::kB32 : Type::kPred);
  in->a = decoder.Read(s, 1, Type::kPred);
  in->p_negated = s.operands[1].negated;
  in->c = decoder.Read(s, 2, Type::kB32);
  in->run = RunVote;
  return absl::OkStatus();
}

Outcome RunActiveMask(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  ForEachLane(mask, [&](int lane) { warp.Row<uint32_t>(in.d)[lane] = mask; });
  return Outcome::kNext;
}

absl::Status DecodeActiveMask(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = RunActiveMask;
  in->d = decoder.Write(s, s.operands[0], Type::kB32);
  return absl::OkStatus();
}

enum class Reduce : uint32_t { kAdd, kMin, kMax, kAnd, kOr, kXor };

template <typename T>
Outcome RunReduce(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!GatherLanes(execution, warp, in, &mask)) {
    return Outcome::kJumped;
  }
  const T* const a = warp.Row<T>(in.a);
  T result = a[__builtin_ctz(mask)];
  ForEachLane(mask & (mask - 1), [&](int lane) {
    switch (static_cast<Reduce>(in.rows[0])) {
      case Reduce::kAdd:
        result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(a[lane]));
        break;
      case Reduce::kMin:
        result = std::min(result, a[lane]);
        break;
      case Reduce::kMax:
        result = std::max(result, a[lane]);
        break;
      case Reduce::kAnd:
        result = result & a[lane];
        break;
      case Reduce::kOr:
        result = result | a[lane];
        break;
      case Reduce::kXor:
        result = result ^ a[lane];
        break;
    }
  });
  ForEachLane(mask, [&](int lane) { warp.Row<T>(in.d)[lane] = result; });
  return Outcome::kNext;
}

absl::Status DecodeRedux(Decoder& decoder, const Statement& s, Instruction* in) {
  static const auto* const reduces = new std::map<absl::string_view, Reduce>{
      {"add", Reduce::kAdd}, {"min", Reduce::kMin}, {"max", Reduce::kMax},
      {"and", Reduce::kAnd}, {"or", Reduce::kOr},   {"xor", Reduce::kXor}};
  if (s.words.size() != 4 || !reduces->contains(s.words[2]) || BytesOf(TypeOf(s.words[3])) != 4) {
    return UnknownForm(s);
  }
  in->rows[0] = static_cast<uint32_t>(reduces->find(s.words[2])->second);
  in->d = decoder.Write(s, s.operands[0], Type::kB32);
  in->a = decoder.Read(s, 1, Type::kB32);
  in->c = decoder.Read(s, 2, Type::kB32);
  in->run = s.words[3] == "s32" ? RunReduce<int32_t> : RunReduce<uint32_t>;
  return absl::OkStatus();
}

// Products of small matrices of bytes, sums of 32 bits.
constexpr int kColumns = 8;
constexpr int kMaxRows = 16;
constexpr int kMaxDepth = 32;
// Rows of an instruction's operands, one after the other: d, a, b, c.
constexpr size_t kMaxOperands = 4 + 4 + 2 + 4;

int Byte(uint32_t word, int i, bool is_signed) {
  const auto byte = static_cast<uint8_t>(word >> (8 * i));
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

// Fragments (PTX ISA, "Matrix Fragments for mma.m8n8k16" and "for mma.m16n8k32", of .u8 or .s8): with
// g = lane / 4 and q = lane % 4, register r of A has row g, or g + 8 for odd r, and columns 4 q .. 4 q + 3,
// 16 more for r above 1; register r of B has rows 4 q .. 4 q + 3, 16 more for r = 1, of column g; register r
// of C has row g, or g + 8 for r above 1, and column 2 q + r % 2.
template <int kRows, int kDepth>
Outcome RunBytes(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!GatherLanes(execution, warp, in, &mask)) {
    return Outcome::kJumped;
  }
  // "The behavior is undefined if all threads in the warp do not execute the same mma instruction."
  if (mask != kFullMask) {
    return execution.Stop(Fault::kIllegalInstruction, Finding::kMask, in,
                          absl::StrCat("warp ", warp.index, " executes it with the lanes ", absl::Hex(mask)));
  }
  constexpr int kSumRegisters = kRows / 4;
  constexpr int kLeftRegisters = kRows * kDepth / 128;
  constexpr int kRightRegisters = kDepth / 16;
  const bool left_signed = (in.offset & 1) != 0;
  const bool right_signed = (in.offset & 2) != 0;
  const uint32_t* const rows = in.parts.data();
  int left[kMaxRows][kMaxDepth];
  int right[kMaxDepth][kColumns];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4;
    const int q = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < kLeftRegisters; ++r) {
        const uint32_t word = warp.Row<uint32_t>(rows[kSumRegisters + r])[lane];
        left[g + r % 2 * 8][4 * q + i + r / 2 * 16] = Byte(word, i, left_signed);
      }
      for (int r = 0; r < kRightRegisters; ++r) {
        const uint32_t word = warp.Row<uint32_t>(rows[kSumRegisters + kLeftRegisters + r])[lane];
        right[4 * q + i + r * 16][g] = Byte(word, i, right_signed);
      }
    }
  }
  uint32_t sums[kSumRegisters][kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int r = 0; r < kSumRegisters; ++r) {
      const uint32_t row = rows[kSumRegisters + kLeftRegisters + kRightRegisters + r];
      sums[r][lane] = warp.Row<uint32_t>(row)[lane];
      for (int k = 0; k < kDepth; ++k) {
        sums[r][lane] +=
            static_cast<uint32_t>(left[lane / 4 + r / 2 * 8][k] * right[k][lane % 4 * 2 + r % 2]);
      }
    }
  }
  for (int r = 0; r < kSumRegisters; ++r) {
    std::copy_n(sums[r], kWarpLanes, warp.Row<uint32_t>(rows[r]));
  }
  return Outcome::kNext;
}

absl::Status DecodeMma(Decoder& decoder, const Statement& s, Instruction* in) {
  // mma.sync.aligned.SHAPE.row.col.s32.A.B.s32
  const bool form = s.words.size() == 10 && s.words[1] == "sync" && s.words[2] == "aligned" &&
                    s.words[4] == "row" && s.words[5] == "col" && s.words[6] == "s32" &&
                    s.words[9] == "s32" && s.operands.size() == 4;
  const auto is_byte = [](const std::string& word) { return word == "u8" || word == "s8"; };
  const bool large = form && s.words[3] == "m16n8k32";
  if (!form || (!large && s.words[3] != "m8n8k16") || !is_byte(s.words[7]) || !is_byte(s.words[8])) {
    return UnknownForm(s);
  }
  const size_t counts[] = {large ? 4u : 2u, large ? 4u : 1u, large ? 2u : 1u, large ? 4u : 2u};
  in->parts.reserve(kMaxOperands);
  for (size_t i = 0; i < s.operands.size(); ++i) {
    const Operand& operand = s.operands[i];
    if (operand.kind != Operand::Kind::kVector || operand.parts.size() != counts[i]) {
      return UnknownForm(s);
    }
    for (const Operand& part : operand.parts) {
      in->parts.push_back(i == 0 ? decoder.Write(s, part, Type::kB32) : decoder.Read(s, part, Type::kB32));
    }
  }
  in->offset = (s.words[7] == "s8" ? 1 : 0) | (s.words[8] == "s8" ? 2 : 0);
  in->c = decoder.Constant(kFullMask, 4);
  in->run = large ? RunBytes<16, 32> : RunBytes<8, 16>;
  return absl::OkStatus();
}

}  // namespace

void AddWarpOpcodes(OpcodeTable* table) {
  (*table)["shfl"] = DecodeShuffle;
  (*table)["vote"] = DecodeVote;
  (*table)["activemask"] = DecodeActiveMask;
  (*table)["redux"] = DecodeRedux;
  (*table)["mma"] = DecodeMma;
}

}  // namespace sluice::cuda_fake
