// Layout of an expert's neurons in device memory: its lead part is whole, row by row; the other two parts are
// records of single neurons, any of which may be absent (neuron_table.h holds their positions).
//
// Parts that a pack stores interleaved (`up | gate+down`, `gate | up+down`) stay so: a record is then copied
// in one piece. Other parts have a region each. The lead is at the slot's beginning, or separate if every
// expert's lead stays in device memory. Units: bytes.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/encoding.h"
#include "inferd/cache/slab_plan.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct NeuronLayout {
  // By part: offset of row 0 or record 0 from the slot's beginning; a separate lead counts from its own
  // beginning.
  std::array<uint64_t, kPartCount> base = {};
  std::array<uint64_t, kPartCount> stride = {};
  uint64_t lead_bytes = 0;    // in memory, a multiple of 64
  uint64_t slot_bytes = 0;    // a slot that holds all neurons, a multiple of 64
  uint64_t record_bytes = 0;  // a neuron on the link, without the lead
  uint32_t width = 0;         // neurons

  bool operator==(const NeuronLayout&) const = default;
};

// `lead`: up or gate.
NeuronLayout NeuronLayoutOf(const Pack& pack, uint32_t layer, uint32_t expert, Part lead, bool lead_apart);

// The parts other than the lead.
PartSet RecordParts(Part lead);

// Slot size of each expert.
SlotBytes NeuronSlotBytes(const Pack& pack, Part lead, bool lead_apart);

// Memory for the position tables of so many slots (and of one that never has neurons), of which a device has
// copies while it reads them: int32 for each neuron of the widest expert, rounded up to whole blocks of 64.
uint64_t PositionBytes(const Pack& pack, uint64_t slots);
uint32_t MostNeurons(const Pack& pack);

// Memory for the leads of all experts.
uint64_t LeadBytes(const Pack& pack, Part lead);

// Checks that `budget` bytes (0: unlimited) hold two slots of every class with their position tables and, if
// they stay, the leads of all experts. INVALID_ARGUMENT with the numbers.
absl::Status CheckNeuronBudget(const Pack& pack, uint64_t budget, Part lead, bool lead_resident);

// The minimum budget of CheckNeuronBudget().
uint64_t SmallestNeuronBudget(const Pack& pack, Part lead, bool lead_resident);

// Plans the slots of that budget; position tables, and with `lead_resident` the leads, are reserved first and
// are not part of the plan's bytes. If a layer may keep fewer experts than a token uses, its experts pass
// through; with `fetch_ahead` twice as many slots pass, since experts predicted for the next layer arrive
// meanwhile. If fewer than a token's experts can pass, there is no room for prefetches.
absl::StatusOr<SlabPlan> PlanNeuronSlab(const Pack& pack, uint64_t budget, Part lead, bool lead_resident,
                                        bool fetch_ahead, const SlotAllocation& allocate);

}  // namespace sluice::inferd
