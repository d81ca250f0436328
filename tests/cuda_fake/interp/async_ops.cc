// cp.async: copies from global to shared memory that land when they are waited for.
//
// "There is no ordering guarantee between a cp.async operation and any other operation until completion is
// waited for with cp.async.wait_group, cp.async.wait_all or an mbarrier" and "the writes are made visible to
// the executing thread" (PTX ISA, cp.async): so the target is poisoned at the issue, filled at the wait, and
// other threads need a barrier behind it.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/lanes.h"

namespace sluice::cuda_fake {
namespace {

uint64_t Address(Warp& warp, uint32_t row, uint32_t row_bytes, int lane) {
  return row_bytes == 4 ? warp.Row<uint32_t>(row)[lane] : warp.Row<uint64_t>(row)[lane];
}

Outcome RunCopy(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (warp.copies.empty()) {
    warp.copies.resize(kWarpLanes);
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint64_t target = Address(warp, in.b, in.rows[2], lane) + in.rows[1];
    const uint64_t source = Address(warp, in.a, in.rows[3], lane) + static_cast<uint64_t>(in.offset);
    // The source's bytes may be fewer, then the rest is zeros.
    const uint32_t count =
        in.c == kNoRow ? in.bytes : std::min<uint32_t>(in.bytes, warp.Row<uint32_t>(in.c)[lane]);
    uint8_t* const to =
        execution.Access(warp, in, lane, Space::kShared, target, in.bytes, AccessKind::kWrite);
    if (to == nullptr) {
      return Outcome::kStop;
    }
    AsyncCopy copy{static_cast<uint64_t>(to - execution.shared()), in.bytes, {}};
    if (count != 0) {
      const uint8_t* const from =
          execution.Access(warp, in, lane, Space::kGlobal, source, in.bytes, AccessKind::kRead);
      if (from == nullptr) {
        return Outcome::kStop;
      }
      std::memcpy(copy.data, from, count);
    }
    execution.PoisonShared(copy.shared_offset, copy.bytes);
    warp.copies[static_cast<size_t>(lane)].groups.back().push_back(copy);
  }
  return Outcome::kNext;
}

Outcome RunCommit(Execution&, Warp& warp, const Instruction&, uint32_t mask) {
  if (warp.copies.empty()) {
    warp.copies.resize(kWarpLanes);
  }
  ForEachLane(mask, [&](int lane) { warp.copies[static_cast<size_t>(lane)].groups.emplace_back(); });
  return Outcome::kNext;
}

// Waits until at most in.offset committed groups are under way; -1: none, and what is not committed neither.
Outcome RunWaitGroup(Execution& execution, Warp& warp, const Instruction& in, uint32_t mask) {
  if (warp.copies.empty()) {
    return Outcome::kNext;
  }
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    auto& groups = warp.copies[static_cast<size_t>(lane)].groups;
    const auto kept = static_cast<size_t>(in.offset + 1);
    while (groups.size() > kept) {
      for (const AsyncCopy& copy : groups.front()) {
        uint8_t* const to =
            execution.Access(warp, in, lane, Space::kShared, copy.shared_offset + kFirstSharedAddress,
                             copy.bytes, AccessKind::kWrite);
        if (to == nullptr) {
          return Outcome::kStop;
        }
        std::memcpy(to, copy.data, copy.bytes);
      }
      groups.erase(groups.begin());
    }
    if (groups.empty()) {
      groups.emplace_back();
    }
  }
  return Outcome::kNext;
}

absl::Status DecodeCp(Decoder& decoder, const Statement& s, Instruction* in) {
  if (s.words.size() < 3 || s.words[1] != "async") {
    return UnknownForm(s);
  }
  if (s.words[2] == "commit_group") {
    in->run = RunCommit;
    return absl::OkStatus();
  }
  if (s.words[2] == "wait_group" || s.words[2] == "wait_all") {
    in->run = RunWaitGroup;
    in->offset = s.words[2] == "wait_all" ? -1 : std::stoll(s.operands[0].text);
    return absl::OkStatus();
  }
  if ((s.words[2] != "ca" && s.words[2] != "cg") || s.operands.size() < 3) {
    return UnknownForm(s);
  }
  Instruction target;
  uint8_t target_bytes = 8;
  uint8_t source_bytes = 8;
  decoder.Address(s, s.operands[0], &target, &target_bytes);
  decoder.Address(s, s.operands[1], in, &source_bytes);
  in->b = target.a;
  in->rows[1] = static_cast<uint32_t>(target.offset);
  in->rows[2] = target_bytes;
  in->rows[3] = source_bytes;
  in->bytes = static_cast<uint8_t>(std::stoi(s.operands[2].text));
  in->c = s.operands.size() > 3 ? decoder.Read(s, 3, Type::kU32) : kNoRow;
  in->run = RunCopy;
  return in->bytes == 4 || in->bytes == 8 || in->bytes == 16 ? absl::OkStatus() : UnknownForm(s);
}

}  // namespace

void AddAsyncOpcodes(OpcodeTable* table) { (*table)["cp"] = DecodeCp; }

}  // namespace sluice::cuda_fake
