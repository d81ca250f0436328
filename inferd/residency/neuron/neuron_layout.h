// Where the neurons of an expert lie in device memory: its lead part whole, row by row, and the other two
// parts as records of single neurons, any of which may be absent (neuron_table.h says where each is).
//
// Parts that a pack stores interleaved (`up | gate+down`, `gate | up+down`) stay so: a record is then copied
// in one piece. Other parts have a region each. The lead is at the slot's beginning, or apart from it where
// every expert's lead stays in device memory. Units: bytes.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/encoding.h"
#include "inferd/residency/slots/slab_plan.h"
#include "pack/pack.h"

namespace sluice {

struct NeuronLayout {
  // By part, from the slot's beginning (the lead where it is apart: from its own): of row 0 or record 0.
  std::array<uint64_t, kPartCount> base = {};
  std::array<uint64_t, kPartCount> stride = {};
  uint64_t lead_bytes = 0;    // in memory, a multiple of 64
  uint64_t slot_bytes = 0;    // of a slot that holds all neurons, a multiple of 64
  uint64_t record_bytes = 0;  // of a neuron on the link, without the lead
  uint32_t width = 0;         // neurons

  bool operator==(const NeuronLayout&) const = default;
};

// `lead`: up or gate.
NeuronLayout NeuronLayoutOf(const Pack& pack, uint32_t layer, uint32_t expert, Part lead, bool lead_apart);

// The parts that are not the lead.
PartSet RecordParts(Part lead);

// How much each expert's slot takes.
SlotBytes NeuronSlotBytes(const Pack& pack, Part lead, bool lead_apart);

// Memory for the positions of so many slots (and of one that has no neurons, ever), which a device has copies
// of while it reads them: int32 for each neuron of the widest expert, rounded up to whole blocks of 64.
uint64_t PositionBytes(const Pack& pack, uint64_t slots);
uint32_t MostNeurons(const Pack& pack);

// Memory for the leads of all experts.
uint64_t LeadBytes(const Pack& pack, Part lead);

// Whether `budget` bytes (0: as many as it takes) hold two slots of every class with their positions and,
// where they stay, the leads of all experts. INVALID_ARGUMENT with the numbers.
absl::Status CheckNeuronBudget(const Pack& pack, uint64_t budget, Part lead, bool lead_resident);

// The least such budget.
uint64_t SmallestNeuronBudget(const Pack& pack, Part lead, bool lead_resident);

// Slots of that budget; positions, and with `lead_resident` the leads, take theirs first and are not in the
// plan's bytes.
// Where a layer may keep fewer experts than a token has, those that it computes pass; with `fetch_ahead`
// twice as many do, since those predicted for the next layer come meanwhile, and if fewer than a token's
// experts can pass there is no room ahead.
absl::StatusOr<SlabPlan> PlanNeuronSlab(const Pack& pack, uint64_t budget, Part lead, bool lead_resident,
                                        bool fetch_ahead, const SlotAllocation& allocate);

}  // namespace sluice
