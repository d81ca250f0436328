#include "inferd/cache/neuron_layout.h"

#include <algorithm>

#include "common/base/status.h"
#include "pack/row_layout.h"

namespace sluice::inferd {
namespace {

constexpr uint64_t kRegionAlignment = 64;
constexpr uint32_t kNeuronBlock = 64;
constexpr std::array<Part, kPartCount> kParts = {Part::kUp, Part::kGate, Part::kDown};

// True if some layer may not keep a token's experts.
bool KeepsTooFew(const Pack& pack, const SlabPlan& plan) {
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    uint32_t kept = 0;
    for (const SlotClass& c : plan.classes) {
      kept += c.quota[layer];
    }
    if (kept < std::min(pack.config().layers[layer].moe.top_k, pack.expert_count(layer))) {
      return true;
    }
  }
  return false;
}

// Bytes of `budget` (0: unlimited) left for slots once each has its position table: the number of slots
// shrinks until both fit.
absl::StatusOr<uint64_t> SlabBytesOf(const Pack& pack, uint64_t budget, const SlotBytes& slot_bytes,
                                     const SlotAllocation& allocate) {
  uint64_t slab = budget;
  while (budget > 0) {
    ASSIGN_OR_RETURN(const SlabPlan plan, PlanSlab(pack, slab, allocate, slot_bytes));
    const uint64_t positions = PositionBytes(pack, plan.slots);
    if (plan.bytes + positions <= budget) {
      break;
    }
    slab = plan.bytes - 1;  // one slot less
  }
  return slab;
}

}  // namespace

PartSet RecordParts(Part lead) { return static_cast<PartSet>(kAllParts & ~PartBit(lead)); }

NeuronLayout NeuronLayoutOf(const Pack& pack, uint32_t layer, uint32_t expert, Part lead, bool lead_apart) {
  NeuronLayout layout;
  const auto view = [&](Part part) { return pack.part(layer, expert, part); };
  const auto row_bytes = [](const PartView& v) { return RowBytes(v.encoding, v.cols); };
  const PartView leading = view(lead);
  const Part first = lead == Part::kUp ? Part::kGate : Part::kUp;
  const PartView a = view(first);
  const PartView b = view(Part::kDown);
  const auto at = [](Part part) { return static_cast<size_t>(part); };
  layout.width = leading.rows;
  layout.record_bytes = row_bytes(a) + row_bytes(b);
  layout.stride[at(lead)] = RoundStride(row_bytes(leading));
  layout.lead_bytes = AlignUp(layout.width * layout.stride[at(lead)], kRegionAlignment);
  const uint64_t records = lead_apart ? 0 : layout.lead_bytes;
  uint64_t end = 0;
  if (a.extent == b.extent && a.extent != leading.extent) {
    const uint32_t begin = std::min(a.base, b.base);
    layout.base[at(first)] = records + a.base - begin;
    layout.base[at(Part::kDown)] = records + b.base - begin;
    layout.stride[at(first)] = layout.stride[at(Part::kDown)] = a.stride;
    end = records + uint64_t{layout.width} * a.stride;
  } else {
    layout.base[at(first)] = records;
    layout.stride[at(first)] = RoundStride(row_bytes(a));
    layout.base[at(Part::kDown)] =
        AlignUp(records + layout.width * layout.stride[at(first)], kRegionAlignment);
    layout.stride[at(Part::kDown)] = RoundStride(row_bytes(b));
    end = layout.base[at(Part::kDown)] + layout.width * layout.stride[at(Part::kDown)];
  }
  layout.slot_bytes = AlignUp(end, kRegionAlignment);
  return layout;
}

SlotBytes NeuronSlotBytes(const Pack& pack, Part lead, bool lead_apart) {
  return [&pack, lead, lead_apart](uint32_t layer, uint32_t expert) {
    return NeuronLayoutOf(pack, layer, expert, lead, lead_apart).slot_bytes;
  };
}

uint64_t LeadBytes(const Pack& pack, Part lead) {
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      bytes += NeuronLayoutOf(pack, layer, expert, lead, true).lead_bytes;
    }
  }
  return bytes;
}

uint32_t MostNeurons(const Pack& pack) {
  uint32_t most = 1;
  for (const LayerConfig& layer : pack.config().layers) {
    most = std::max(most, layer.moe.experts > 0 ? layer.moe.expert_width : 0);
  }
  return (most + kNeuronBlock - 1) / kNeuronBlock * kNeuronBlock;
}

uint64_t PositionBytes(const Pack& pack, uint64_t slots) {
  return (slots + 1) * MostNeurons(pack) * sizeof(int32_t);
}

uint64_t SmallestNeuronBudget(const Pack& pack, Part lead, bool lead_resident) {
  const SlotBytes slot_bytes = NeuronSlotBytes(pack, lead, lead_resident);
  return (lead_resident ? LeadBytes(pack, lead) : 0) + SmallestDeviceBudget(pack, slot_bytes) +
         PositionBytes(pack, SmallestSlotCount(pack, slot_bytes));
}

absl::Status CheckNeuronBudget(const Pack& pack, uint64_t budget, Part lead, bool lead_resident) {
  for (size_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    const MoeConfig& moe = pack.config().layers[layer].moe;
    if (moe.experts > 0 && !HasGates(moe.activation)) {
      return absl::UnimplementedError(absl::StrCat(
          "--policy cache_granularity=neuron: the experts of layer ", layer,
          " have no gates; caches of neurons are for experts with a gate, an up and a down part"));
    }
  }
  RETURN_IF_ERROR(CheckDeviceBudget(pack, /*budget=*/0, NeuronSlotBytes(pack, lead, lead_resident)));
  const uint64_t least = SmallestNeuronBudget(pack, lead, lead_resident);
  if (budget == 0 || budget >= least) {
    return absl::OkStatus();
  }
  const uint64_t leads = lead_resident ? LeadBytes(pack, lead) : 0;
  return absl::InvalidArgumentError(absl::StrCat(
      "device_budget of ", budget, " bytes cannot hold ",
      lead_resident ? absl::StrCat("the ", lead == Part::kUp ? "up" : "gate", " parts of all experts (",
                                   leads, " bytes, --policy lead_resident=on) and ")
                    : "",
      "the least working set of ", least - leads,
      " bytes: two slots of each size and where their neurons lie"));
}

absl::StatusOr<SlabPlan> PlanNeuronSlab(const Pack& pack, uint64_t budget, Part lead, bool lead_resident,
                                        bool fetch_ahead, const SlotAllocation& allocate) {
  RETURN_IF_ERROR(CheckNeuronBudget(pack, budget, lead, lead_resident));
  const SlotBytes slot_bytes = NeuronSlotBytes(pack, lead, lead_resident);
  const uint64_t rest = budget == 0 || !lead_resident ? budget : budget - LeadBytes(pack, lead);
  ASSIGN_OR_RETURN(const uint64_t slab, SlabBytesOf(pack, rest, slot_bytes, allocate));
  const uint32_t top_k = LargestTopKOf(pack);
  ASSIGN_OR_RETURN(SlabPlan plan, PlanSlab(pack, slab, allocate, slot_bytes));
  if (KeepsTooFew(pack, plan)) {
    ASSIGN_OR_RETURN(plan, PlanSlab(pack, slab, allocate, slot_bytes, fetch_ahead ? 2 * top_k : top_k));
    uint32_t passing = 0;
    for (const SlotClass& c : plan.classes) {
      passing += c.passing;
    }
    plan.room_ahead = passing >= top_k;
  }
  return plan;
}

}  // namespace sluice::inferd
