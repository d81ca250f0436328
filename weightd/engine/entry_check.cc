#include "weightd/engine/entry_check.h"

namespace sluice::weightd {
namespace {

constexpr EntryVerdict kFine;

EntryVerdict Invalid(EntryField field) { return {absl::StatusCode::kInvalidArgument, field}; }
EntryVerdict Unimplemented(EntryField field) { return {absl::StatusCode::kUnimplemented, field}; }

bool IsFill(Opcode opcode) { return opcode == Opcode::kFillExpert || opcode == Opcode::kFillExtent; }

// Checks that an entry of another opcode leaves the fields of transfers neutral.
EntryVerdict CheckNoTransfer(const SubmissionEntry& entry) {
  if (entry.list_count != 0 || entry.list_offset != 0) return Invalid(EntryField::kList);
  if (entry.slab != kNoSlab) return Invalid(EntryField::kSlab);
  if (entry.tile_neurons != 0) return Invalid(EntryField::kTile);
  for (int part = 0; part < kPartCount; ++part) {
    if (entry.base[part] != 0) return Invalid(EntryField::kBase);
    if (entry.stride[part] != 0) return Invalid(EntryField::kStride);
  }
  return kFine;
}

EntryVerdict CheckExpert(const SubmissionEntry& entry, const ExtentSource& pack) {
  if (entry.extent != kNoExtent) return Invalid(EntryField::kExtent);
  if (entry.parts == 0 || (entry.parts & ~kAllParts) != 0) return Invalid(EntryField::kParts);
  if (entry.layer >= pack.layer_count()) return Invalid(EntryField::kLayer);
  return entry.expert < pack.expert_count(entry.layer) ? kFine : Invalid(EntryField::kExpert);
}

// Checks that `rows` rows of the part lie within the slab.
EntryVerdict CheckRange(uint64_t base, uint64_t stride, uint64_t rows, uint64_t row_bytes, uint64_t slab) {
  if (row_bytes > slab || base > slab - row_bytes) return Invalid(EntryField::kBase);
  const uint64_t room = slab - row_bytes - base;  // for the starts of the rows after the first
  if (stride < row_bytes || (rows > 1 && stride > room / (rows - 1))) return Invalid(EntryField::kStride);
  return kFine;
}

// Size of the slab in bytes; 0: there is no slab with this number.
uint64_t SlabBytes(const SubmissionEntry& entry, std::span<const SlabView> slabs) {
  for (const SlabView& slab : slabs) {
    if (slab.number == entry.slab) {
      return slab.bytes;
    }
  }
  return 0;
}

// A range plan counts its bytes in 32 bits.
constexpr uint64_t kMaxExtentTransfer = 0xffffffff;

EntryVerdict CheckExtentTransfer(const SubmissionEntry& entry, const ExtentSource& pack,
                                 std::span<const SlabView> slabs) {
  if (entry.parts != 0) return Invalid(EntryField::kParts);
  if (entry.expert != 0) return Invalid(EntryField::kExpert);
  if (entry.extent >= pack.extent_count()) return Invalid(EntryField::kExtent);
  if (entry.list_count != 0 || entry.list_offset != 0) return Invalid(EntryField::kList);
  if (entry.tile_neurons != 0) return Invalid(EntryField::kTile);
  const uint64_t slab_bytes = SlabBytes(entry, slabs);
  if (slab_bytes == 0) return Invalid(EntryField::kSlab);
  for (int part = 0; part < kPartCount; ++part) {
    if (part > 0 && entry.base[part] != 0) return Invalid(EntryField::kBase);
    if (entry.stride[part] != 0) return Invalid(EntryField::kStride);
  }
  const uint64_t length = pack.extent(entry.extent).length;
  if (length > kMaxExtentTransfer) return Unimplemented(EntryField::kExtent);
  return length <= slab_bytes && entry.base[0] <= slab_bytes - length ? kFine : Invalid(EntryField::kBase);
}

EntryVerdict CheckTransfer(const SubmissionEntry& entry, const ExtentSource& pack,
                           const ControlLayout& layout, std::span<const SlabView> slabs) {
  const EntryVerdict expert = CheckExpert(entry, pack);
  if (expert.code != absl::StatusCode::kOk) return expert;
  const uint64_t list_end = uint64_t{entry.list_offset} + entry.list_count;
  if (list_end > layout.list_entries || (entry.list_count == 0 && entry.list_offset != 0)) {
    return Invalid(EntryField::kList);
  }
  const uint64_t slab_bytes = SlabBytes(entry, slabs);
  if (slab_bytes == 0) return Invalid(EntryField::kSlab);
  for (int part = 0; part < kPartCount; ++part) {
    if ((entry.parts >> part & 1) == 0) {
      if (entry.base[part] != 0) return Invalid(EntryField::kBase);
      if (entry.stride[part] != 0) return Invalid(EntryField::kStride);
      continue;
    }
    const PartRows place = pack.ExpertPart(entry.layer, entry.expert, static_cast<Part>(part));
    if (entry.list_count > place.rows) return Invalid(EntryField::kList);
    const bool of_neurons = place.rows == pack.ExpertPart(entry.layer, entry.expert, Part::kUp).rows;
    if (entry.list_count > 0 && !of_neurons) return Invalid(EntryField::kList);
    const uint64_t rows = entry.list_count == 0 ? place.rows : entry.list_count;
    const EntryVerdict range =
        CheckRange(entry.base[part], entry.stride[part], rows, place.row_bytes, slab_bytes);
    if (range.code != absl::StatusCode::kOk) return range;
  }
  return kFine;
}

EntryVerdict CheckFill(const SubmissionEntry& entry, const ExtentSource& pack) {
  if (entry.opcode == Opcode::kFillExtent) {
    if (entry.parts != 0) return Invalid(EntryField::kParts);
    if (entry.expert != 0) return Invalid(EntryField::kExpert);
    return entry.extent < pack.extent_count() ? kFine : Invalid(EntryField::kExtent);
  }
  return CheckExpert(entry, pack);
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
                        const ControlLayout& layout, std::span<const SlabView> slabs) {
  if (entry.opcode > Opcode::kTransferExtent) return Unimplemented(EntryField::kOpcode);
  if (entry.request_class > RequestClass::kPrefetch) return Invalid(EntryField::kClass);
  const bool expert = entry.opcode == Opcode::kFillExpert || entry.opcode == Opcode::kTransfer;
  if ((entry.flags & ~(expert ? kScanFlag : 0)) != 0) return Unimplemented(EntryField::kFlags);
  if (entry.reserved != 0) return Invalid(EntryField::kReserved);
  if (entry.target != 0 && entry.opcode != Opcode::kCancel) return Invalid(EntryField::kTarget);
  if (entry.pack >= packs.size()) return Invalid(EntryField::kPack);
  if (entry.progress != kNoProgress && entry.progress >= layout.progress_words) {
    return Invalid(EntryField::kProgress);
  }
  if (entry.opcode == Opcode::kTransfer) {
    return CheckTransfer(entry, *packs[entry.pack], layout, slabs);
  }
  if (entry.opcode == Opcode::kTransferExtent) {
    return CheckExtentTransfer(entry, *packs[entry.pack], slabs);
  }
  const EntryVerdict transfer = CheckNoTransfer(entry);
  if (transfer.code != absl::StatusCode::kOk) {
    return transfer;
  }
  return IsFill(entry.opcode) ? CheckFill(entry, *packs[entry.pack]) : CheckOther(entry);
}

EntryVerdict CheckNeurons(const SubmissionEntry& entry, std::span<const uint32_t> neurons,
                          const ExtentSource& pack) {
  uint64_t least = 0;  // the minimum index of the next neuron
  for (uint32_t neuron : neurons) {
    if (neuron < least) return Invalid(EntryField::kList);
    least = uint64_t{neuron} + 1;
  }
  for (int part = 0; part < kPartCount; ++part) {
    if ((entry.parts >> part & 1) != 0 &&
        least > pack.ExpertPart(entry.layer, entry.expert, static_cast<Part>(part)).rows) {
      return Invalid(EntryField::kList);
    }
  }
  return kFine;
}

}  // namespace sluice::weightd
