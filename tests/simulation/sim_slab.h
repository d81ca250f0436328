// A simulated client's device memory: slots that it lends to transfers, and the invariants of their bytes.
//
// A slot is free, or lent to one request, of rows or of a whole extent. The request's rows must be right once
// they are reported as landed, and after its completion nothing may be written: a returned slot is painted
// over and checked again. Before that a simulated device may read it, until some later event: its rows must
// stay as they are until then. In a slab of dense weights the data stays for the process's life, whatever
// happens to weightd.
//
// Thread safety: one thread, the scheduler's.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/protocol/session_abi.h"
#include "common/protocol/shared_memory.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/sim_pack.h"

namespace sluice {

class SimSlab {
 public:
  static constexpr uint32_t kSlots = 6;
  static constexpr uint64_t kPartBytes = 16 * 1024;  // of a slot, at most 32 rows
  static constexpr uint64_t kSlotBytes = 3 * kPartBytes;
  static constexpr uint64_t kBytes = kSlots * kSlotBytes;

  enum class Kind : uint8_t { kSlots, kDense };

  // `rotten` are fills whose bytes may be wrong. `forget_events`: a planted bug, slots are lent although they
  // are still being read.
  SimSlab(Kind kind, Scheduler* scheduler, const SimPack* source, uint32_t pack,
          const std::set<uint64_t>* rotten, bool forget_events);

  int fd() const { return memory_.fd.get(); }

  // Lends a free slot to `entry`, whose layer, expert and parts are set, and fills in the rest of a transfer.
  // `neurons` gets the rows to gather, none for all, as always with `whole`. False: no slot is free.
  bool Lend(SubmissionEntry* entry, std::vector<uint32_t>* neurons, bool whole = false);
  // Writes a row that the client itself copies into a slot it has lent to `id`.
  void Put(uint64_t id, Part part, uint32_t row, const std::byte* from);
  // Checks the first `tiles` tiles of a lent slot, which were reported as landed. Empty: they are right.
  std::string CheckLanded(uint64_t id, uint32_t tiles) const;
  // Ends the request: with `ok` all of its rows must be there. The slot is painted, and may be lent again, at
  // once or when the device has read it; or its rows stay.
  std::string TakeBack(uint64_t id, bool ok);
  // True if an extent's rows have come to stay, or are on their way.
  bool HasExtent(uint32_t extent) const;
  // Frees the slots lent when weightd went away. REQUIRES: its end is known.
  void FreeLent();
  // Checks that unlent slots are unchanged, and that rows being read or kept are right. Ends the reads that
  // are due.
  std::string CheckRest();

 private:
  struct Slot {
    bool lent = false;
    bool stays = false;
    uint64_t read_until = 0;  // the event after the last reader; 0: it is done
    SubmissionEntry entry{};
    std::vector<uint32_t> neurons;
  };
  static constexpr uint64_t kPaint = 0x7061696e74656421;

  Slot* Find(uint64_t id);
  const Slot* Find(uint64_t id) const { return const_cast<SimSlab*>(this)->Find(id); }
  uint32_t Rows(const Slot& slot) const;
  // Checks that the cell at `at` of the slab is the one at `offset` of the pack.
  std::string CheckCell(const Slot& slot, uint64_t at, uint64_t offset) const;
  std::string CheckRows(const Slot& slot, uint32_t rows) const;
  void Paint(size_t slot);

  bool IsRead(const Slot& slot) const { return slot.read_until != 0; }

  // A device's read.
  struct Reader {
    Slot slot;
    size_t index = 0;
  };

  const Kind kind_;
  const bool forget_events_;
  Scheduler* const scheduler_;
  const SimPack* const source_;
  const uint32_t pack_;
  const std::set<uint64_t>* const rotten_;
  SharedMemory memory_;
  std::vector<Slot> slots_;
  std::vector<Reader> readers_;
};

}  // namespace sluice
