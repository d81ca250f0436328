// One-time and per-session setup: memory, resident leads, the first fill.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"
#include "inferd/residency/neuron/neuron_residency.h"

namespace sluice::inferd {
NeuronResidency::NeuronResidency(const NeuronResidencyOptions& options, std::unique_ptr<NeuronSlots> slots,
                                 WeightClient* client, FetchQueue* fetches, Backend* backend)
    : LayerResidency(client, fetches, &backend->queue(), FetchWindow(options.slots.max_in_flight),
                     options.slots.stall_limit, options.slots.watch),
      options_(options),
      backend_(backend),
      slots_(std::move(slots)),
      keeper_(options.slots.eviction, ExpertsByLayer(pack_), &slots_->table()),
      fill_(options.slots.stall_limit, fetches, {[this] { Poll(); }, [this] { return slots_->in_flight(); }}),
      link_(options.slots.load_seconds, fetches),
      gaps_(slots_->plan(), queue_),
      entries_(most_experts()),
      words_(slots_->neurons().words()) {
  const uint64_t most = most_experts();
  need_.assign(most * words_, 0);
  all_.assign(words_, 0);
  none_.assign(words_, 0);
  list_.assign(uint64_t{words_} * 64, 0);
  if (options_.miss == NeuronMiss::kBudgeted) {
    wants_.reserve(most * words_ * 64);
  }
  begun_.assign(most, 0);
  early_rows_.reserve(most);
  leads_out_.reserve(most);
  layer_leads_.reserve(most);
  used_experts_.reserve(most);
  neuron_counters_.resize(pack_.config().layers.size());
}

NeuronResidency::~NeuronResidency() {
  if (leads_ != kNoBuffer) {
    backend_->Free(leads_).IgnoreError();  // the id is valid
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
    return absl::OkStatus();  // slots filled before weightd was lost are still valid
  }
  fill_.Restart();
  RETURN_IF_ERROR(FillLeads());
  RETURN_IF_ERROR(MeasureBreakEven());
  RETURN_IF_ERROR(FillSlots());
  RETURN_IF_ERROR(fill_.Drain(0));
  filled_ = true;
  return absl::OkStatus();
}

// Waits until all leads have arrived: no mask can be computed without them.
absl::Status NeuronResidency::FillLeads() {
  if (!slots_->lead_resident()) {
    return absl::OkStatus();
  }
  uint64_t missing = pack_.expert_total();
  absl::Time limit = absl::Now() + options_.slots.stall_limit;
  for (;;) {
    ASSIGN_OR_RETURN(const uint64_t asked, RequestLeads());
    RETURN_IF_ERROR(fill_.Drain(0));
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

// Requests missing leads; returns their number, though the ring may have accepted fewer.
absl::StatusOr<uint64_t> NeuronResidency::RequestLeads() {
  uint64_t asked = 0;
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
      if (slots_->HasLead(layer, expert)) {
        continue;
      }
      ++asked;
      RETURN_IF_ERROR(fill_.Drain(SlotFill::kWindow - 1));
      const absl::Status sent =
          slots_->FetchLead(FetchKind::kDemand, step_, layer, expert, NeuronSlots::kNoSlot);
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) {
        return sent;
      }
    }
  }
  return asked;
}

absl::Status NeuronResidency::FillSlots() {
  return fill_.Fill(pack_, slots_->table(), options_.slots.fill_order,
                    [this](uint32_t layer, uint32_t expert) { return FillSlot(layer, expert); });
}

absl::Status NeuronResidency::FillSlot(uint32_t layer, uint32_t expert) {
  if (!slots_->CanTake(layer, expert)) {
    return absl::OkStatus();
  }
  const uint32_t slot = slots_->Take(layer, expert, SlotTable::For::kDemand, NoVictim);
  if (slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  const uint32_t width = slots_->layout(layer, expert).width;
  for (uint32_t neuron = 0; neuron < width; ++neuron) {
    list_[neuron] = neuron;
  }
  const absl::Status sent = fill_.Send([&] {
    return slots_->FetchNeurons(FetchKind::kDemand, step_, slot, absl::MakeConstSpan(list_.data(), width));
  });
  if (!sent.ok()) {
    slots_->FreeSlot(slot);
  }
  return sent;
}

}  // namespace sluice::inferd
