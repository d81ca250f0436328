// Execution's memory accesses: bounds, alignment, shadows.
#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/execution.h"

namespace sluice::cuda_fake {
namespace {

absl::string_view Verb(AccessKind kind) {
  return kind == AccessKind::kRead ? "reads" : kind == AccessKind::kWrite ? "writes" : "updates";
}

void Tell(const Region& region, uint64_t offset, uint64_t bytes, AccessKind kind) {
  if (region.watch != nullptr) {
    region.watch->BeforeDevice(region.bytes + offset, bytes, kind != AccessKind::kRead);
  }
}

}  // namespace

Space Execution::SpaceOf(uint64_t* address) {
  for (const auto& [window, space] :
       {std::pair{kSharedWindow, Space::kShared}, {kLocalWindow, Space::kLocal}}) {
    if (*address >= window && *address < window + kWindowBytes) {
      *address -= window;
      return space;
    }
  }
  return Space::kGlobal;
}

// Lanes one behind the other, or all at one place, in one region or variable: what most accesses are.
bool Execution::PlacesAtOnce(Warp& warp, uint32_t mask, Space space, const uint64_t* addresses,
                             uint32_t bytes, AccessKind kind, LanePlaces* places) {
  const int lowest = std::countr_zero(mask);
  const auto lanes = static_cast<uint32_t>(std::popcount(mask));
  const uint64_t first = addresses[lowest];
  if (space == Space::kLocal || kind == AccessKind::kAtomic || first % bytes != 0 ||
      mask >> lowest != kFullMask >> (kWarpLanes - lanes)) {
    return false;
  }
  uint64_t apart = 0;
  uint64_t differ = 0;
  for (uint32_t i = 0; i < lanes; ++i) {
    const uint64_t address = addresses[static_cast<uint32_t>(lowest) + i];
    apart |= address ^ (first + uint64_t{bytes} * i);
    differ |= address ^ first;
  }
  const bool same = differ == 0 && (kind == AccessKind::kRead || lanes == 1);
  if (!same && apart != 0) {
    return false;
  }
  const uint64_t total = same ? bytes : uint64_t{bytes} * lanes;
  const Who who = ThreadOf(warp, lowest);
  places->pattern = same ? LanePlaces::Pattern::kSame : LanePlaces::Pattern::kRun;
  places->lowest = lowest;
  if (space == Space::kShared) {
    const uint64_t offset = first - kFirstSharedAddress;
    if (offset >= shared_bytes_ || total > shared_bytes_ - offset) {
      return false;
    }
    places->first = shared_ + offset;
    return kind == AccessKind::kRead
               ? shared_shadow_->ReadLanes(offset, bytes, lanes, shared_scope_, same ? who | kWholeWarp : who)
               : shared_shadow_->WriteLanes(offset, bytes, lanes, shared_scope_, who);
  }
  const Region* region = last_region_;
  if (region == nullptr || first - region->base >= region->size) {
    region = spec_.regions->Find(first);
  }
  if (region == nullptr || first - region->base + total > region->size ||
      !(kind == AccessKind::kRead ? region->readable : region->writable)) {
    return false;
  }
  last_region_ = region;
  const uint64_t offset = first - region->base;
  places->first = region->bytes + offset;
  if (region->shadow == nullptr) {
    Tell(*region, offset, total, kind);
    return true;
  }
  region->TellPeers(global_.operation, offset, total, kind != AccessKind::kRead);
  return kind == AccessKind::kRead
             ? region->shadow->ReadLanes(offset, bytes, lanes, global_, same ? who | kWholeWarp : who)
             : region->shadow->WriteLanes(offset, bytes, lanes, global_, who);
}

// Lanes here and there in one region or in shared memory. Returns those for which this is not enough.
uint32_t Execution::PlacesApart(Warp& warp, uint32_t mask, Space space, const uint64_t* addresses,
                                uint32_t bytes, AccessKind kind, LanePlaces* places) {
  if (space == Space::kLocal || kind == AccessKind::kAtomic) {
    return mask;
  }
  const bool shared = space == Space::kShared;
  const uint64_t any = addresses[std::countr_zero(mask)];
  const Region* region = shared ? nullptr : last_region_;
  if (!shared && (region == nullptr || any - region->base >= region->size)) {
    region = spec_.regions->Find(any);
  }
  if (!shared && (region == nullptr || !(kind == AccessKind::kRead ? region->readable : region->writable))) {
    return mask;
  }
  last_region_ = shared ? last_region_ : region;
  const uint64_t base = shared ? kFirstSharedAddress : region->base;
  const uint64_t size = shared ? shared_bytes_ : region->size;
  uint8_t* const memory = shared ? shared_ : region->bytes;
  uint64_t offsets[kWarpLanes];
  uint32_t inside = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    offsets[lane] = addresses[lane] - base;
    places->lanes[lane] = memory + offsets[lane];
    const bool is_inside = offsets[lane] < size && size - offsets[lane] >= bytes;
    inside |= static_cast<uint32_t>(is_inside && (addresses[lane] & (bytes - 1)) == 0) << lane;
  }
  inside &= mask;
  Shadow* const shadow = shared ? shared_shadow_ : region->shadow;
  if (shadow == nullptr) {
    ForEachLane(inside, [&](int lane) { Tell(*region, offsets[lane], bytes, kind); });
  }
  if (!shared && region->peers != nullptr) {
    ForEachLane(inside, [&](int lane) {
      region->TellPeers(global_.operation, offsets[lane], bytes, kind != AccessKind::kRead);
    });
  }
  const Scope& scope = shared ? shared_scope_ : global_;
  const uint32_t left = shadow == nullptr ? 0
                        : kind == AccessKind::kRead
                            ? shadow->ReadEach(offsets, inside, bytes, scope, ThreadOf(warp, 0))
                            : shadow->WriteEach(offsets, inside, bytes, scope, ThreadOf(warp, 0));
  return left | (mask & ~inside);
}

void Execution::Places(Warp& warp, const Instruction& in, uint32_t mask, Space space, uint64_t* addresses,
                       uint32_t bytes, AccessKind kind, LanePlaces* places) {
  if (space == Space::kGeneric) {
    // Windows do not differ within what lanes do at once, or else each lane has its own.
    uint64_t begin = addresses[std::countr_zero(mask)];
    const uint64_t window = begin & ~(kWindowBytes - 1);
    const Space first = SpaceOf(&begin);
    bool one = true;
    ForEachLane(mask, [&](int lane) {
      uint64_t address = addresses[lane];
      one = one && SpaceOf(&address) == first;
    });
    if (one) {
      space = first;
      if (space != Space::kGlobal) {
        ForEachLane(mask, [&](int lane) { addresses[lane] -= window; });
      }
    }
  }
  uint32_t left = mask;
  if (!spec_.counts && space != Space::kGeneric) {
    if (PlacesAtOnce(warp, mask, space, addresses, bytes, kind, places)) {
      return;
    }
    left = PlacesApart(warp, mask, space, addresses, bytes, kind, places);
  }
  places->pattern = LanePlaces::Pattern::kApart;
  for (; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    places->lanes[lane] = Access(warp, in, lane, space, addresses[lane], bytes, kind);
    if (places->lanes[lane] == nullptr) {
      places->pattern = LanePlaces::Pattern::kStopped;
      return;
    }
  }
}

uint8_t* Execution::Access(Warp& warp, const Instruction& in, int lane, Space space, uint64_t address,
                           uint32_t bytes, AccessKind kind) {
  if (space == Space::kGeneric) {
    space = SpaceOf(&address);
  }
  // "Vector accesses must be aligned to a multiple of the access size" (PTX ISA, Vectors; ld: "the address
  // must be naturally aligned to a multiple of the access size").
  if (address % bytes != 0) {
    Stop(Fault::kMisaligned, Finding::kMisaligned, in,
         absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", bytes, " bytes at 0x", absl::Hex(address),
                      ", which is ", address % bytes, " beyond a multiple of them"));
    return nullptr;
  }
  if (spec_.counts && space == Space::kShared) {
    requests_.NoteShared(lane, address, bytes);
  } else if (spec_.counts && space == Space::kGlobal) {
    requests_.NoteGlobal(address, bytes);
  }
  switch (space) {
    case Space::kShared:
      return SharedAccess(warp, in, lane, address, bytes, kind);
    case Space::kLocal:
      return LocalAccess(warp, in, lane, address, bytes, kind);
    default:
      return GlobalAccess(warp, in, lane, address, bytes, kind);
  }
}

uint8_t* Execution::GlobalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address,
                                 uint32_t bytes, AccessKind kind) {
  const Region* region = last_region_;
  if (region == nullptr || address - region->base >= region->size) {
    region = spec_.regions->Find(address);
  }
  const bool allowed = region != nullptr && address - region->base + bytes <= region->size &&
                       (kind == AccessKind::kRead ? region->readable : region->writable);
  if (!allowed) {
    Stop(Fault::kIllegalAddress, Finding::kOutOfBounds, in,
         absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", bytes, " bytes at 0x", absl::Hex(address),
                      ": ", spec_.regions->Near(address)));
    return nullptr;
  }
  last_region_ = region;
  const uint64_t offset = address - region->base;
  region->TellPeers(global_.operation, offset, bytes, kind != AccessKind::kRead);
  if (region->shadow == nullptr) {
    Tell(*region, offset, bytes, kind);
  } else {
    const Shadow::Conflict conflict =
        region->shadow->Access(offset, bytes, kind, global_, ThreadOf(warp, lane));
    if (conflict.kind != Shadow::Conflict::Kind::kNone) {
      ReportConflict(conflict, kind, warp, in, lane, absl::StrCat("byte ", offset, " of ", region->name));
    }
  }
  return region->bytes + offset;
}

uint8_t* Execution::SharedAccess(Warp& warp, const Instruction& in, int lane, uint64_t address,
                                 uint32_t bytes, AccessKind kind) {
  const uint64_t offset = address - kFirstSharedAddress;
  if (offset >= shared_bytes_ || bytes > shared_bytes_ - offset || !shared_shadow_->IsPart(offset, bytes)) {
    Stop(Fault::kIllegalAddress, Finding::kOutOfBounds, in,
         absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", bytes, " bytes at shared address ",
                      static_cast<int64_t>(offset), ", in no variable of ", program_.static_shared,
                      " static and ", spec_.dynamic_shared, " dynamic bytes"));
    return nullptr;
  }
  const Shadow::Conflict conflict =
      shared_shadow_->Access(offset, bytes, kind, shared_scope_, ThreadOf(warp, lane));
  if (conflict.kind != Shadow::Conflict::Kind::kNone) {
    ReportConflict(conflict, kind, warp, in, lane, absl::StrCat("shared byte ", offset));
  }
  return shared_ + offset;
}

uint8_t* Execution::LocalAccess(Warp& warp, const Instruction& in, int lane, uint64_t address, uint32_t bytes,
                                AccessKind kind) {
  const uint64_t size = program_.local_bytes;
  if (address >= size || bytes > size - address) {
    Stop(Fault::kIllegalAddress, Finding::kOutOfBounds, in,
         absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", bytes, " bytes at local address ", address,
                      " of ", size));
    return nullptr;
  }
  if (warp.local.empty()) {
    warp.local.assign(size * kWarpLanes, 0xCB);
    warp.local_written.assign(size * kWarpLanes, 0);
  }
  const uint64_t at = static_cast<uint64_t>(lane) * size + address;
  const auto written = warp.local_written.begin() + static_cast<int64_t>(at);
  if (kind == AccessKind::kRead && std::find(written, written + bytes, 0) != written + bytes) {
    ReportAt(Finding::kUninitialised, in,
             absl::StrCat(Thread(warp, lane), " reads local bytes at ", address, " that it has not written"));
  } else {
    std::fill_n(written, bytes, 1);
  }
  return warp.local.data() + at;
}

void Execution::PoisonShared(uint64_t offset, uint32_t bytes) {
  shared_shadow_->Poison(offset, bytes);
  std::memset(shared_ + offset, 0xCB, bytes);
}

void Execution::ReportConflict(const Shadow::Conflict& conflict, AccessKind kind, const Warp& warp,
                               const Instruction& in, int lane, absl::string_view where) {
  using Kind = Shadow::Conflict::Kind;
  const std::string who = absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", where);
  const absl::string_view before = conflict.other_wrote ? "written" : "read";
  const std::string other =
      conflict.thread >= kWholeWarp ? "other threads" : absl::StrCat("thread ", conflict.thread);
  switch (conflict.kind) {
    case Kind::kNone:
      return;
    case Kind::kUninitialised:
      ReportAt(Finding::kUninitialised, in, absl::StrCat(who, ", which nothing has written"));
      return;
    case Kind::kThreads:
      ReportAt(Finding::kRace, in,
               absl::StrCat(who, ", ", before, " by ", other, " with no barrier between"));
      return;
    case Kind::kBlocks:
      ReportAt(Finding::kRace, in, absl::StrCat(who, ", ", before, " by another block of the launch"));
      return;
    case Kind::kOperations:
      spec_.reports->Add(Finding::kUnordered, absl::StrCat(program_.name, ":", in.statement->line),
                         absl::StrCat(global_.ordering->NameOf(global_.operation), " is not ordered after ",
                                      global_.ordering->NameOf(conflict.operation), ": ", program_.Where(in),
                                      ", ", who, ", ", before, " there"));
      return;
  }
}

}  // namespace sluice::cuda_fake
