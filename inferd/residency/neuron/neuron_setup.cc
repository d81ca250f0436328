// What happens once, or once per session with weightd: memory, the leads that stay, the first fill.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"
#include "inferd/residency/neuron/neuron_residency.h"

namespace sluice {
namespace {

constexpr uint32_t kFillWindow = 8;  // transfers in flight of the first fill

std::vector<uint32_t> ExpertsByLayer(const Pack& pack) {
  std::vector<uint32_t> experts;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    experts.push_back(pack.expert_count(layer));
  }
  return experts;
}

}  // namespace

NeuronResidency::NeuronResidency(const NeuronResidencyOptions& options, std::unique_ptr<NeuronSlots> slots,
                                 WeightClient* client, FetchQueue* fetches, Backend* backend)
    : options_(options),
      pack_(client->pack()),
      client_(client),
      fetches_(fetches),
      backend_(backend),
      queue_(&backend->queue()),
      slots_(std::move(slots)),
      eviction_(options.slots.eviction, ExpertsByLayer(pack_)),
      words_(slots_->neurons().words()),
      window_(options.slots.max_in_flight),
      stall_(options.slots.stall_limit),
      counters_(pack_.config().layers.size()) {
  const std::vector<uint32_t> experts = ExpertsByLayer(pack_);
  const uint32_t most = experts.empty() ? 0 : *std::max_element(experts.begin(), experts.end());
  entries_.resize(most);
  demand_of_.assign(most, 0);
  chosen_.reserve(most);
  scores_.reserve(most);
  ready_.reserve(most);
  failed_.reserve(most);
  need_.assign(uint64_t{most} * words_, 0);
  all_.assign(words_, 0);
  none_.assign(words_, 0);
  list_.assign(uint64_t{words_} * 64, 0);
  if (options_.miss == NeuronMiss::kBudgeted) {
    wants_.reserve(uint64_t{most} * words_ * 64);
  }
  begun_.assign(most, 0);
  neuron_counters_.resize(experts.size());
}

NeuronResidency::~NeuronResidency() {
  if (leads_ != kNoBuffer) {
    backend_->Free(leads_).IgnoreError();  // the id is ours
  }
}

absl::StatusOr<std::unique_ptr<NeuronResidency>> NeuronResidency::Create(
    const NeuronResidencyOptions& options, WeightClient* client, FetchQueue* fetches, Backend* backend) {
  NeuronSlotsOptions slots;
  slots.budget = options.slots.budget;
  slots.lead = options.slots.lead;
  slots.lead_resident = options.lead_resident;
  slots.fetch_ahead = options.fetch_ahead;
  slots.link_gbps = options.slots.link_gbps;
  slots.link_latency_us = options.slots.link_latency_us;
  slots.tile_neurons = options.slots.tile_neurons;
  slots.allocate = options.slots.allocate;
  ASSIGN_OR_RETURN(std::unique_ptr<NeuronSlots> made, NeuronSlots::Create(slots, client, fetches, backend));
  std::unique_ptr<NeuronResidency> residency(
      new NeuronResidency(options, std::move(made), client, fetches, backend));
  RETURN_IF_ERROR(residency->AllocateLeads());
  return residency;
}

absl::Status NeuronResidency::AllocateLeads() {
  value_stride_ = uint64_t{words_} * 64;
  active_offset_ = kValueRows * value_stride_ * sizeof(float);
  const uint64_t bytes = active_offset_ + entries_.size() * words_ * sizeof(uint64_t);
  ASSIGN_OR_RETURN(leads_, backend_->Allocate(bytes, BufferKind::kStaging));
  if (backend_->HostRead({leads_, 0}, bytes) == nullptr) {
    return absl::InternalError("the leads' values cannot be read by the host");
  }
  return absl::OkStatus();
}

absl::Status NeuronResidency::Attach() {
  RETURN_IF_ERROR(slots_->Offer());
  if (filled_) {
    return absl::OkStatus();  // what was there before weightd was lost still is
  }
  stall_.Restart(absl::Now());
  RETURN_IF_ERROR(FillLeads());
  RETURN_IF_ERROR(MeasureBreakEven());
  RETURN_IF_ERROR(FillSlots());
  RETURN_IF_ERROR(DrainFill(0));
  filled_ = true;
  return absl::OkStatus();
}

// Until all of them are there: without them no mask can be made.
absl::Status NeuronResidency::FillLeads() {
  if (!slots_->lead_resident()) {
    return absl::OkStatus();
  }
  uint64_t missing = pack_.expert_total();
  absl::Time limit = absl::Now() + options_.slots.stall_limit;
  for (;;) {
    ASSIGN_OR_RETURN(const uint64_t asked, AskForLeads());
    RETURN_IF_ERROR(DrainFill(0));
    RETURN_IF_ERROR(start_error_);
    if (asked == 0) {
      return absl::OkStatus();
    }
    if (asked < missing) {
      limit = absl::Now() + options_.slots.stall_limit;
    } else if (absl::Now() >= limit) {
      return absl::ResourceExhaustedError(absl::StrCat(asked, " of ", pack_.expert_total(),
                                                       " experts' leads did not come for ",
                                                       absl::FormatDuration(options_.slots.stall_limit)));
    }
    missing = asked;
    Poll();
  }
}

// Of those that are not there; returns how many these are, though the ring may have taken fewer.
absl::StatusOr<uint64_t> NeuronResidency::AskForLeads() {
  uint64_t asked = 0;
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
      if (slots_->HasLead(layer, expert)) {
        continue;
      }
      ++asked;
      RETURN_IF_ERROR(DrainFill(kFillWindow - 1));
      const absl::Status sent =
          slots_->FetchLead(FetchKind::kDemand, step_, layer, expert, NeuronSlots::kNoSlot);
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) {
        return sent;
      }
    }
  }
  return asked;
}

// Slots fill by usage before anybody waits for them. What cannot be had now is left to the first demand.
absl::Status NeuronResidency::FillSlots() {
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    std::vector<uint32_t> order;
    if (layer < options_.slots.fill_order.size()) {
      order = options_.slots.fill_order[layer];
    }
    for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
      order.push_back(expert);  // those that the profile knows nothing of
    }
    for (const uint32_t expert : order) {
      const SlotTable& table = slots_->table();
      const uint16_t size_class = table.class_of(layer, expert);
      if (IsComing(layer, expert) || table.held(layer, size_class) >= table.quota(layer, size_class)) {
        continue;
      }
      RETURN_IF_ERROR(DrainFill(kFillWindow - 1));
      RETURN_IF_ERROR(FillSlot(layer, expert));
    }
  }
  return absl::OkStatus();
}

absl::Status NeuronResidency::FillSlot(uint32_t layer, uint32_t expert) {
  if (!slots_->MayTake(layer, expert)) {
    return absl::OkStatus();
  }
  const uint32_t slot = slots_->Take(layer, expert, SlotTable::For::kDemand,
                                     [](uint32_t, absl::Span<const uint32_t>) { return ~0u; });
  if (slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  const uint32_t width = slots_->layout(layer, expert).width;
  for (uint32_t neuron = 0; neuron < width; ++neuron) {
    list_[neuron] = neuron;
  }
  const auto all = absl::MakeConstSpan(list_.data(), width);
  absl::Status sent = slots_->FetchNeurons(FetchKind::kDemand, step_, slot, all);
  while (absl::IsResourceExhausted(sent) && slots_->in_flight() > 0) {  // the ring is full
    RETURN_IF_ERROR(DrainFill(slots_->in_flight() - 1));
    sent = slots_->FetchNeurons(FetchKind::kDemand, step_, slot, all);
  }
  if (!sent.ok()) {
    slots_->GiveUp(slot);
  }
  return sent;
}

// Waits until at most `most` transfers are in flight.
absl::Status NeuronResidency::DrainFill(uint32_t most) {
  uint32_t before = slots_->in_flight();
  while (slots_->in_flight() > most) {
    Poll();
    if (slots_->in_flight() < before) {
      stall_.Restart(absl::Now());
      before = slots_->in_flight();
      continue;
    }
    if (stall_.Exceeded(absl::Now())) {
      return absl::ResourceExhaustedError(absl::StrCat("filling the device's memory: ", slots_->in_flight(),
                                                       " transfers did not end for ",
                                                       absl::FormatDuration(options_.slots.stall_limit)));
    }
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(absl::Now())));
  }
  return absl::OkStatus();
}

}  // namespace sluice
