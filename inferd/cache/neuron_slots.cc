#include "inferd/cache/neuron_slots.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Maximum transfers in flight; more wait as for a full ring.
constexpr uint32_t kMaxTransfers = 512;

}  // namespace

NeuronSlots::NeuronSlots(const NeuronSlotsOptions& options, SlabPlan plan, TileSize tile,
                         WeightClient* client, FetchQueue* fetches, Queue* queue)
    : options_(options),
      pack_(client->pack()),
      plan_(std::move(plan)),
      tile_(tile),
      client_(client),
      fetches_(fetches),
      absent_(MostNeurons(pack_), NeuronTable::kAbsent),
      table_(plan_, queue),
      neurons_(plan_.slots, MostNeurons(pack_)),
      states_(plan_.slots) {
  uint64_t leads = plan_.bytes;
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
      AddExpert(layer, expert);
      lead_offsets_.push_back(leads);
      leads += options_.lead_resident ? layout(layer, expert).lead_bytes : 0;
    }
  }
  lead_offsets_.push_back(leads);
  lead_there_.assign(shape_of_.size(), 0);
  transfers_.reserve(kMaxTransfers);
}

void NeuronSlots::AddExpert(uint32_t layer, uint32_t expert) {
  Shape shape{NeuronLayoutOf(pack_, layer, expert, options_.lead, options_.lead_resident), {}};
  for (size_t part = 0; part < kPartCount; ++part) {
    const PartView view = pack_.part(layer, expert, static_cast<Part>(part));
    shape.parts[part] = {view.encoding, {}, shape.layout.stride[part], view.rows, view.cols, {}};
  }
  const auto known = std::find_if(shapes_.begin(), shapes_.end(), [&shape](const Shape& other) {
    bool same = shape.layout == other.layout;
    for (size_t part = 0; part < kPartCount; ++part) {
      const WeightView& a = shape.parts[part];
      const WeightView& b = other.parts[part];
      same = same && a.encoding == b.encoding && a.rows == b.rows && a.cols == b.cols;
    }
    return same;
  });
  shape_of_.push_back(static_cast<uint32_t>(known - shapes_.begin()));
  if (known == shapes_.end()) {
    shapes_.push_back(shape);
  }
}

absl::StatusOr<std::unique_ptr<NeuronSlots>> NeuronSlots::Create(const NeuronSlotsOptions& options,
                                                                 WeightClient* client, FetchQueue* fetches,
                                                                 Backend* backend) {
  ASSIGN_OR_RETURN(const TileSize tile, TileSize::Create(options.tile_neurons));
  ASSIGN_OR_RETURN(SlabPlan plan,
                   PlanNeuronSlab(client->pack(), options.budget, options.lead, options.lead_resident,
                                  options.fetch_ahead, options.allocate));
  std::unique_ptr<NeuronSlots> slots(
      new NeuronSlots(options, std::move(plan), tile, client, fetches, &backend->queue()));
  ASSIGN_OR_RETURN(slots->slab_, DeviceSlab::Create(slots->lead_offsets_.back(), backend));
  return slots;
}

absl::Status NeuronSlots::Offer() {
  for (const Transfer& transfer : transfers_) {
    if (transfer.slot != kNoSlot && transfer.count > 0 && !transfer.taken_over) {
      neurons_.Drop(transfer.slot, transfer.first, transfer.count);
    }
  }
  transfers_.clear();
  table_.LoseFilling();
  table_.FreeLost();
  for (uint32_t slot = 0; slot < plan_.slots; ++slot) {
    states_[slot] = {};
    table_.slot(slot).joined = 0;
  }
  return slab_->Offer(options_.link_gbps, options_.link_latency_us, client_);
}

uint32_t NeuronSlots::Find(uint32_t layer, uint32_t expert) const {
  const uint32_t slot = table_.Find(layer, expert);
  return slot == kNoSlot || states_[slot].dead ? kNoSlot : slot;
}

uint32_t NeuronSlots::Take(uint32_t layer, uint32_t expert, SlotTable::For purpose,
                           SlotTable::Victim victim) {
  const uint32_t slot = table_.TakeSlot(layer, expert, purpose, victim);
  if (slot == kNoSlot) {
    return kNoSlot;
  }
  states_[slot] = {};
  neurons_.Reset(slot, layout(layer, expert).width);
  if (options_.lead_resident) {
    table_.SetReady(slot);
  }
  return slot;
}

bool NeuronSlots::HasLead(uint32_t layer, uint32_t expert) const {
  return options_.lead_resident ? lead_there_[plan_.first_expert[layer] + expert] != 0
                                : table_.IsReady(layer, expert);
}

bool NeuronSlots::IsFull(uint32_t layer, uint32_t expert) const {
  return table_.IsReady(layer, expert) && neurons_.IsFull(table_.Find(layer, expert));
}

uint32_t NeuronSlots::demands_in_flight() const {
  return static_cast<uint32_t>(std::count_if(transfers_.begin(), transfers_.end(), [](const Transfer& t) {
    return t.request_class == RequestClass::kDemand;
  }));
}

uint32_t NeuronSlots::LandedNeurons(uint32_t slot) const {
  if (states_[slot].whole == 0) {
    return 0;
  }
  return tile_.Landed(client_->LandedTiles(states_[slot].whole), neurons_.width(slot));
}

absl::Status NeuronSlots::Send(uint64_t step, Transfer transfer) {
  if (transfers_.size() == transfers_.capacity()) {
    return absl::ResourceExhaustedError(absl::StrCat(transfers_.size(), " transfers are in flight"));
  }
  const NeuronLayout& layout = this->layout(transfer.layer, transfer.expert);
  const bool stays = transfer.slot == kNoSlot;
  const uint64_t offset = stays ? lead_offsets_[plan_.first_expert[transfer.layer] + transfer.expert]
                                : table_.slot(transfer.slot).offset;
  TransferTarget target;
  target.slab = slab_->number();
  PartSet parts = transfer.lead ? PartBit(options_.lead) : PartSet{0};
  parts |= transfer.count > 0 ? RecordParts(options_.lead) : PartSet{0};
  for (size_t part = 0; part < kPartCount; ++part) {
    if ((parts & PartBit(static_cast<Part>(part))) == 0) {
      continue;
    }
    const bool leads = static_cast<Part>(part) == options_.lead;
    target.base[part] = offset + layout.base[part] + (leads ? 0 : transfer.first * layout.stride[part]);
    target.stride[part] = layout.stride[part];
  }
  if (transfer.whole) {
    target.tile_neurons = TileOf(layout.width);
  } else if (transfer.count > 0) {
    target.neurons = neurons_.Neurons(transfer.slot, transfer.first, transfer.count);
  }
  ASSIGN_OR_RETURN(transfer.id, fetches_->FetchExpert(transfer.request_class, step, transfer.layer,
                                                      transfer.expert, parts, &target));
  if (!stays) {
    states_[transfer.slot].in_flight++;
    states_[transfer.slot].whole = transfer.whole ? transfer.id : states_[transfer.slot].whole;
    table_.slot(transfer.slot).joined = 1;  // not evicted while a transfer writes there
  }
  transfers_.push_back(transfer);
  return absl::OkStatus();
}

absl::Status NeuronSlots::FetchLead(RequestClass request_class, uint64_t step, uint32_t layer,
                                    uint32_t expert, uint32_t slot) {
  Transfer transfer;
  transfer.request_class = request_class;
  transfer.slot = slot;
  transfer.layer = layer;
  transfer.expert = expert;
  transfer.lead = true;
  return Send(step, transfer);
}

absl::Status NeuronSlots::FetchNeurons(RequestClass request_class, uint64_t step, uint32_t slot,
                                       absl::Span<const uint32_t> neurons) {
  const Slot& place = table_.slot(slot);
  Transfer transfer;
  transfer.request_class = request_class;
  transfer.slot = slot;
  transfer.layer = place.layer;
  transfer.expert = place.expert;
  transfer.count = static_cast<uint32_t>(neurons.size());
  transfer.whole = neurons.size() == neurons_.width(slot);
  transfer.lead = transfer.whole && place.state == SlotState::kFilling && states_[slot].in_flight == 0;
  transfer.first = neurons_.Reserve(slot, neurons);
  if (transfer.first == NeuronTable::kNoRecord) {
    return absl::OutOfRangeError(absl::StrCat("a slot has no room for ", neurons.size(), " neurons more"));
  }
  const absl::Status sent = Send(step, transfer);
  if (!sent.ok()) {
    neurons_.Drop(slot, transfer.first, transfer.count);
  }
  return sent;
}

void NeuronSlots::Promote(uint64_t step, uint32_t slot) {
  const size_t before = transfers_.size();
  for (size_t i = 0; i < before && states_[slot].in_flight > 0; ++i) {
    Transfer demand = transfers_[i];
    if (demand.slot != slot || demand.request_class != RequestClass::kPrefetch || demand.taken_over) {
      continue;
    }
    demand.request_class = RequestClass::kDemand;
    if (!Send(step, demand).ok()) {
      return;
    }
    transfers_[i].taken_over = true;
  }
}

// Frees a slot after its last transfer.
void NeuronSlots::Free(uint32_t slot) {
  table_.SetFree(slot);
  states_[slot] = {};
}

bool NeuronSlots::Handle(const FetchCompletion& completion, Ended* ended) {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [&](const Transfer& t) { return t.id == completion.id; });
  if (found == transfers_.end()) {
    return false;
  }
  const Transfer transfer = *found;
  *found = transfers_.back();
  transfers_.pop_back();
  *ended = {transfer.slot,        transfer.layer, transfer.expert, transfer.lead, transfer.count > 0,
            !transfer.taken_over, false};
  const bool ok = completion.code == absl::StatusCode::kOk;
  if (transfer.slot == kNoSlot) {
    lead_there_[plan_.first_expert[transfer.layer] + transfer.expert] = ok ? 1 : 0;
    return true;
  }
  State& state = states_[transfer.slot];
  --state.in_flight;
  if (!transfer.taken_over) {
    state.whole = transfer.whole ? 0 : state.whole;
    if (transfer.count > 0) {
      ok ? neurons_.Land(transfer.slot, transfer.first, transfer.count)
         : neurons_.Drop(transfer.slot, transfer.first, transfer.count);
    }
    if (transfer.lead && ok) {
      table_.SetReady(transfer.slot);
    }
    state.dead = state.dead || (transfer.lead && !ok);
  }
  if (state.in_flight == 0) {
    table_.slot(transfer.slot).joined = 0;
    if (state.dead) {
      Free(transfer.slot);
      ended->freed = true;
    }
  }
  return true;
}

WeightView NeuronSlots::LeadView(uint32_t layer, uint32_t expert) const {
  const Shape& shape = ShapeOf(layer, expert);
  const auto lead = static_cast<size_t>(options_.lead);
  WeightView view = shape.parts[lead];
  const uint64_t offset = options_.lead_resident
                              ? lead_offsets_[plan_.first_expert[layer] + expert]
                              : table_.slot(table_.Find(layer, expert)).offset + shape.layout.base[lead];
  view.base = {slab_->buffer(), offset};
  return view;
}

WeightView NeuronSlots::RecordView(uint32_t layer, uint32_t expert, uint32_t slot, Part part,
                                   bool by_list) const {
  const Shape& shape = ShapeOf(layer, expert);
  const auto index = static_cast<size_t>(part);
  WeightView view = shape.parts[index];
  view.base = {slab_->buffer(), slot == kNoSlot ? 0 : table_.slot(slot).offset + shape.layout.base[index]};
  if (by_list || slot == kNoSlot) {
    view.positions =
        slot == kNoSlot ? absl::MakeConstSpan(absent_).first(view.rows) : neurons_.Positions(slot);
  }
  return view;
}

}  // namespace sluice::inferd
