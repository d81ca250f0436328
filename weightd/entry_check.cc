#include "weightd/entry_check.h"

namespace sluice {
namespace {

constexpr EntryVerdict kFine;

EntryVerdict Invalid(EntryField field) { return {absl::StatusCode::kInvalidArgument, field}; }
EntryVerdict Unimplemented(EntryField field) { return {absl::StatusCode::kUnimplemented, field}; }

bool IsFill(Opcode opcode) { return opcode == Opcode::kFillExpert || opcode == Opcode::kFillExtent; }

// Fields that only transfers use; this build has none.
EntryVerdict CheckTransferFields(const SubmissionEntry& entry, const ControlLayout& layout) {
  const uint64_t list_end = uint64_t{entry.list_offset} + entry.list_count;
  if (list_end > layout.list_entries) {
    return Invalid(EntryField::kList);
  }
  if (entry.list_count != 0 || entry.list_offset != 0) {
    return Unimplemented(EntryField::kList);
  }
  if (entry.slab != kNoSlab) {
    return Unimplemented(EntryField::kSlab);
  }
  for (int part = 0; part < kPartCount; ++part) {
    if (entry.base[part] != 0) {
      return Invalid(EntryField::kBase);
    }
    if (entry.stride[part] != 0) {
      return Invalid(EntryField::kStride);
    }
  }
  return kFine;
}

EntryVerdict CheckFill(const SubmissionEntry& entry, const ExtentSource& pack) {
  if (entry.opcode == Opcode::kFillExtent) {
    if (entry.parts != 0) return Invalid(EntryField::kParts);
    if (entry.expert != 0) return Invalid(EntryField::kExpert);
    return entry.extent < pack.extent_count() ? kFine : Invalid(EntryField::kExtent);
  }
  if (entry.extent != kNoExtent) return Invalid(EntryField::kExtent);
  if (entry.parts == 0 || (entry.parts & ~kAllParts) != 0) return Invalid(EntryField::kParts);
  if (entry.layer >= pack.layer_count()) return Invalid(EntryField::kLayer);
  return entry.expert < pack.expert_count(entry.layer) ? kFine : Invalid(EntryField::kExpert);
}

// NOP, CANCEL and CANCEL_PREFETCHES name no extent.
EntryVerdict CheckOther(const SubmissionEntry& entry) {
  if (entry.request_class != RequestClass::kDemand) return Invalid(EntryField::kClass);
  if (entry.parts != 0) return Invalid(EntryField::kParts);
  if (entry.layer != 0 && entry.opcode != Opcode::kCancelPrefetches) return Invalid(EntryField::kLayer);
  if (entry.expert != 0) return Invalid(EntryField::kExpert);
  if (entry.extent != kNoExtent) return Invalid(EntryField::kExtent);
  return entry.progress == kNoProgress ? kFine : Invalid(EntryField::kProgress);
}

}  // namespace

EntryVerdict CheckEntry(const SubmissionEntry& entry, std::span<const ExtentSource* const> packs,
                        const ControlLayout& layout) {
  if (entry.opcode > Opcode::kCancelPrefetches) return Unimplemented(EntryField::kOpcode);
  if (entry.request_class > RequestClass::kPrefetch) return Invalid(EntryField::kClass);
  if (entry.flags != 0) return Unimplemented(EntryField::kFlags);
  if (entry.reserved != 0) return Invalid(EntryField::kReserved);
  if (entry.target != 0 && entry.opcode != Opcode::kCancel) return Invalid(EntryField::kTarget);
  if (entry.pack >= packs.size()) return Invalid(EntryField::kPack);
  if (entry.progress != kNoProgress && entry.progress >= layout.progress_words) {
    return Invalid(EntryField::kProgress);
  }
  if (entry.opcode == Opcode::kTransfer) return Unimplemented(EntryField::kOpcode);
  const EntryVerdict transfer = CheckTransferFields(entry, layout);
  if (transfer.code != absl::StatusCode::kOk) {
    return transfer;
  }
  return IsFill(entry.opcode) ? CheckFill(entry, *packs[entry.pack]) : CheckOther(entry);
}

}  // namespace sluice
