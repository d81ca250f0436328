// What lanes of a warp do together: shfl, vote, activemask, redux.
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

}  // namespace

void AddWarpOpcodes(OpcodeTable* table) {
  (*table)["shfl"] = DecodeShuffle;
  (*table)["vote"] = DecodeVote;
  (*table)["activemask"] = DecodeActiveMask;
  (*table)["redux"] = DecodeRedux;
}

}  // namespace sluice::cuda_fake
