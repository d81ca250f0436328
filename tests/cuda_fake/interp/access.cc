// Execution's memory accesses: bounds, alignment, shadows.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/execution.h"

namespace sluice::cuda_fake {
namespace {

absl::string_view Verb(AccessKind kind) {
  return kind == AccessKind::kRead ? "reads" : kind == AccessKind::kWrite ? "writes" : "updates";
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
  if (region->shadow != nullptr) {
    const Shadow::Conflict conflict =
        region->shadow->Access(offset, bytes, kind, Who(warp, lane), spec_.ordering);
    if (conflict.kind != Shadow::Conflict::Kind::kNone) {
      ReportConflict(conflict, kind, warp, in, lane, absl::StrCat("byte ", offset, " of ", region->name));
    }
  }
  return region->bytes + offset;
}

uint8_t* Execution::SharedAccess(Warp& warp, const Instruction& in, int lane, uint64_t address,
                                 uint32_t bytes, AccessKind kind) {
  const uint64_t offset = address - kFirstSharedAddress;
  const bool inside = offset < shared_.size() && bytes <= shared_.size() - offset &&
                      shared_valid_[offset] != 0 && shared_valid_[offset + bytes - 1] != 0;
  if (!inside) {
    Stop(Fault::kIllegalAddress, Finding::kOutOfBounds, in,
         absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", bytes, " bytes at shared address ",
                      static_cast<int64_t>(offset), ", in no variable of ", program_.static_shared,
                      " static and ", spec_.dynamic_shared, " dynamic bytes"));
    return nullptr;
  }
  const Shadow::Conflict conflict = shared_shadow_->Access(offset, bytes, kind, Who(warp, lane), nullptr);
  if (conflict.kind != Shadow::Conflict::Kind::kNone) {
    ReportConflict(conflict, kind, warp, in, lane, absl::StrCat("shared byte ", offset));
  }
  return shared_.data() + offset;
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
  std::fill_n(shared_.begin() + static_cast<int64_t>(offset), bytes, 0xCB);
}

void Execution::ReportConflict(const Shadow::Conflict& conflict, AccessKind kind, const Warp& warp,
                               const Instruction& in, int lane, absl::string_view where) {
  using Kind = Shadow::Conflict::Kind;
  const std::string who = absl::StrCat(Thread(warp, lane), " ", Verb(kind), " ", where);
  const absl::string_view before = conflict.other_wrote ? "written" : "read";
  const std::string other =
      conflict.other.thread >= 0x8000 ? "other threads" : absl::StrCat("thread ", conflict.other.thread);
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
                         absl::StrCat(spec_.ordering->NameOf(spec_.operation), " is not ordered after ",
                                      spec_.ordering->NameOf(conflict.other.operation), ": ",
                                      program_.Where(in), ", ", who, ", ", before, " there"));
      return;
  }
}

}  // namespace sluice::cuda_fake
