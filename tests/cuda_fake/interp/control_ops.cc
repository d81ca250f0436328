// Where lanes go: bra, ret, exit, trap, bar.sync and barrier.sync.
#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

Outcome RunBranch(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  const bool all = mask == warp.current->mask;
  warp.Branch(warp.current, mask, in.target);
  return all ? Outcome::kBranched : Outcome::kJumped;
}

absl::Status DecodeBranch(Decoder& decoder, const Statement& s, Instruction* in) {
  in->run = RunBranch;
  in->target = decoder.Label(s, s.operands[0]);
  return absl::OkStatus();
}

Outcome RunExit(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!warp.copies.empty()) {
    ForEachLane(mask, [&](int lane) {
      size_t open = 0;
      for (const auto& group : warp.copies[static_cast<size_t>(lane)].groups) {
        open += group.size();
      }
      if (open != 0) {
        execution.ReportAt(
            Finding::kCopyInFlight, in,
            absl::StrCat(execution.Thread(warp, lane), " ends with ", open, " cp.async under way"));
      }
    });
  }
  warp.Exit(warp.current, mask);
  return Outcome::kJumped;
}

absl::Status DecodeExit(Decoder&, const Statement&, Instruction* in) {
  in->run = RunExit;
  return absl::OkStatus();
}

Outcome RunTrap(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  return execution.Stop(Fault::kLaunchFailure, Finding::kApi, in,
                        absl::StrCat(execution.Thread(warp, __builtin_ctz(mask)), " traps"));
}

absl::Status DecodeTrap(Decoder&, const Statement&, Instruction* in) {
  in->run = RunTrap;
  return absl::OkStatus();
}

// Lanes wait; the execution lets them go on when all threads of the block have come.
Outcome RunBarrier(Execution&, Warp& warp, const Instruction&, uint32_t mask) {
  const uint32_t pc = warp.current->pc;
  Warp::Group* const waiting = warp.WaitingAt(pc);
  if (waiting == nullptr) {
    warp.Wait(warp.current, mask);
    return Outcome::kJumped;
  }
  waiting->mask |= mask;
  const uint32_t others = warp.current->mask & ~mask;
  if (others != 0) {
    *warp.current = {pc + 1, others, false};
  } else {
    *warp.current = warp.groups.back();
    warp.groups.pop_back();
  }
  return Outcome::kJumped;
}

// Lanes of the mask wait for each other.
Outcome RunWarpBarrier(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (!GatherLanes(execution, warp, in, &mask)) {
    return Outcome::kJumped;
  }
  ++warp.sync;
  return Outcome::kNext;
}

absl::Status DecodeBarrier(Decoder& decoder, const Statement& s, Instruction* in) {
  if (s.opcode == "bar.warp.sync") {
    in->run = RunWarpBarrier;
    in->c = decoder.Read(s, 0, Type::kU32);
    return absl::OkStatus();
  }
  const bool whole_block = s.operands.size() == 1 && s.operands[0].text == "0";
  if (whole_block &&
      (s.opcode == "bar.sync" || s.opcode == "barrier.sync" || s.opcode == "barrier.sync.aligned" ||
       s.opcode == "bar.cta.sync" || s.opcode == "barrier.cta.sync")) {
    in->run = RunBarrier;
    return absl::OkStatus();
  }
  return UnknownForm(s);
}

}  // namespace

void AddControlOpcodes(OpcodeTable* table) {
  (*table)["bra"] = DecodeBranch;
  (*table)["ret"] = DecodeExit;
  (*table)["exit"] = DecodeExit;
  (*table)["trap"] = DecodeTrap;
  (*table)["bar"] = DecodeBarrier;
  (*table)["barrier"] = DecodeBarrier;
}

}  // namespace sluice::cuda_fake
