#include "tests/simulation/sim_slab.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice {

namespace {

// Maximum delay of a device's queue, in events.
constexpr uint64_t kMaxReadEvents = 500;

}  // namespace

SimSlab::SimSlab(Kind kind, Scheduler* scheduler, const SimPack* source, uint32_t pack,
                 const std::set<uint64_t>* rotten, bool forget_events)
    : kind_(kind),
      forget_events_(forget_events),
      scheduler_(scheduler),
      source_(source),
      pack_(pack),
      rotten_(rotten),
      memory_(*CreateSharedMemory("simulated-slab", kBytes, PeerAccess::kReadWrite)),
      slots_(kSlots) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    Paint(slot);
  }
}

void SimSlab::Paint(size_t slot) {
  for (uint64_t at = 0; at < kSlotBytes; at += 8) {
    std::memcpy(memory_.map.data() + slot * kSlotBytes + at, &kPaint, 8);
  }
}

SimSlab::Slot* SimSlab::Find(uint64_t id) {
  for (Slot& slot : slots_) {
    if (slot.lent && slot.entry.id == id) {
      return &slot;
    }
  }
  return nullptr;
}

bool SimSlab::Lend(SubmissionEntry* entry, std::vector<uint32_t>* neurons, bool whole) {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [this](const Slot& slot) {
    return !slot.lent && !slot.stays && (forget_events_ || !IsRead(slot));
  });
  if (free == slots_.end()) {
    return false;
  }
  const auto start = static_cast<uint64_t>(free - slots_.begin()) * kSlotBytes;
  if (entry->opcode == Opcode::kTransferExtent) {
    if (source_->extent(entry->extent).length > kSlotBytes) {
      return false;
    }
    entry->base[0] = start;
    free->lent = true;
    free->entry = *entry;
    free->neurons.clear();
    return true;
  }
  for (int part = 0; part < kPartCount; ++part) {
    if ((entry->parts >> part & 1) != 0) {
      entry->base[part] = start + static_cast<uint64_t>(part) * kPartBytes;
      entry->stride[part] = kSimCellBytes;
    }
  }
  entry->tile_neurons = static_cast<uint32_t>(scheduler_->Below(6));
  free->lent = true;
  free->entry = *entry;
  free->neurons.clear();
  if (!whole && scheduler_->Chance(2)) {
    const uint32_t rows = Rows(*free);
    for (uint32_t row = 0; row < rows; ++row) {
      if (scheduler_->Chance(3)) {
        free->neurons.push_back(row);
      }
    }
  }
  *neurons = free->neurons;
  return true;
}

void SimSlab::Put(uint64_t id, Part part, uint32_t row, const std::byte* from) {
  const Slot* slot = Find(id);
  std::memcpy(memory_.map.data() + slot->entry.base[static_cast<int>(part)] + row * kSimCellBytes, from,
              sizeof(SimCell));
}

uint32_t SimSlab::Rows(const Slot& slot) const {
  if (!slot.neurons.empty()) {
    return static_cast<uint32_t>(slot.neurons.size());
  }
  if (slot.entry.opcode == Opcode::kTransferExtent) {
    return static_cast<uint32_t>(source_->extent(slot.entry.extent).length / kSimCellBytes);
  }
  for (int part = 0; part < kPartCount; ++part) {
    if ((slot.entry.parts >> part & 1) != 0) {
      return source_->ExpertPart(slot.entry.layer, slot.entry.expert, static_cast<Part>(part)).rows;
    }
  }
  return 0;
}

std::string SimSlab::CheckCell(const Slot& slot, uint64_t at, uint64_t offset) const {
  SimCell cell;
  std::memcpy(&cell, memory_.map.data() + at, sizeof(cell));
  if (cell.place == SimPositionWord(pack_, offset) || rotten_->contains(cell.fill)) {
    return "";
  }
  return absl::StrCat("byte ", offset, " of the pack in transfer ", slot.entry.id,
                      cell.place == kPaint ? " has not landed" : " is wrong");
}

std::string SimSlab::CheckRows(const Slot& slot, uint32_t rows) const {
  if (slot.entry.opcode == Opcode::kTransferExtent) {
    const uint64_t offset = source_->extent(slot.entry.extent).offset;
    for (uint64_t at = 0; at < rows * kSimCellBytes; at += kSimCellBytes) {
      if (std::string wrong = CheckCell(slot, slot.entry.base[0] + at, offset + at); !wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }
  for (int part = 0; part < kPartCount; ++part) {
    if ((slot.entry.parts >> part & 1) == 0) {
      continue;
    }
    const weightd::PartRows place =
        source_->ExpertPart(slot.entry.layer, slot.entry.expert, static_cast<Part>(part));
    const uint64_t offset = source_->extent(place.extent).offset + place.base;
    for (uint32_t row = 0; row < rows; ++row) {
      const uint64_t neuron = slot.neurons.empty() ? row : slot.neurons[row];
      std::string wrong =
          CheckCell(slot, slot.entry.base[part] + row * kSimCellBytes, offset + neuron * place.stride);
      if (!wrong.empty()) {
        return wrong;
      }
    }
  }
  return "";
}

std::string SimSlab::CheckLanded(uint64_t id, uint32_t tiles) const {
  const Slot* slot = Find(id);
  if (slot == nullptr || tiles == 0) {
    return "";
  }
  const uint32_t rows = Rows(*slot);
  const uint32_t tile = slot->entry.tile_neurons == 0 ? rows : slot->entry.tile_neurons;
  if (tiles > (rows + tile - 1) / tile) {
    return absl::StrCat(tiles, " tiles of transfer ", id, " have landed");
  }
  return CheckRows(*slot, std::min(rows, tiles * tile));
}

std::string SimSlab::TakeBack(uint64_t id, bool ok) {
  Slot* slot = Find(id);
  if (slot == nullptr) {
    return "";
  }
  const std::string wrong = ok ? CheckRows(*slot, Rows(*slot)) : "";
  const auto index = static_cast<size_t>(slot - slots_.data());
  slot->lent = false;
  if (ok && kind_ == Kind::kDense) {
    slot->stays = true;
  } else if (ok && scheduler_->Chance(2)) {
    slot->read_until = scheduler_->events() + 1 + scheduler_->Below(kMaxReadEvents);
    readers_.push_back({*slot, index});
  } else if (!IsRead(*slot)) {
    Paint(index);
  }
  return wrong;
}

bool SimSlab::HasExtent(uint32_t extent) const {
  return std::any_of(slots_.begin(), slots_.end(), [extent](const Slot& slot) {
    return (slot.lent || slot.stays) && slot.entry.extent == extent;
  });
}

void SimSlab::FreeLent() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].lent) {
      slots_[slot].lent = false;
      Paint(slot);
    }
  }
}

std::string SimSlab::CheckRest() {
  for (size_t i = readers_.size(); i > 0; --i) {
    const Reader& reader = readers_[i - 1];
    if (const std::string wrong = CheckRows(reader.slot, Rows(reader.slot)); !wrong.empty()) {
      return absl::StrCat("while the device reads slot ", reader.index, ": ", wrong);
    }
    if (reader.slot.read_until > scheduler_->events()) {
      continue;
    }
    slots_[reader.index].read_until = 0;
    if (!slots_[reader.index].lent) {
      Paint(reader.index);
    }
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(i - 1));
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].stays) {
      if (const std::string wrong = CheckRows(slots_[slot], Rows(slots_[slot])); !wrong.empty()) {
        return absl::StrCat("dense slot ", slot, ": ", wrong);
      }
      continue;
    }
    const bool rests = !slots_[slot].lent && !IsRead(slots_[slot]);
    for (uint64_t at = 0; rests && at < kSlotBytes; at += kSimCellBytes) {
      uint64_t word;
      std::memcpy(&word, memory_.map.data() + slot * kSlotBytes + at, 8);
      if (word != kPaint) {
        return absl::StrCat("byte ", at, " of slab slot ", slot, " was written, which is lent to nobody");
      }
    }
  }
  return "";
}

}  // namespace sluice
