#include "inferd/sim/virtual_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

uint32_t EndOf(const ExpertWork& work) { return work.neuron_end == 0 ? work.up.rows : work.neuron_end; }

}  // namespace

uint32_t NeuronsOf(const ExpertWork& work) { return EndOf(work) - work.neuron_begin; }

std::string VirtualDevice::Describe() const {
  return absl::StrCat(ForwardingBackend::Describe(), ", timed as ", ShowVirtualCosts(costs_));
}

// Number of active neurons counted so far for the work's rows, over all tiles.
uint64_t VirtualQueue::Active(const MoeExpertsArgs& args, const ExpertWork& work) const {
  uint64_t sum = 0;
  for (const uint32_t slot : work.slots) {
    uint32_t neurons = 0;
    const std::byte* count =
        backend_->HostRead(args.active + uint64_t{slot} * sizeof(neurons), sizeof(neurons));
    if (count != nullptr) {
      std::memcpy(&neurons, count, sizeof(neurons));
    }
    sum += neurons;
  }
  return sum;
}

uint32_t ActiveByLead(Backend* backend, const ExpertWork& work) {
  const uint64_t bytes = uint64_t{work.up.rows} * sizeof(float);
  const absl::Span<const int32_t> positions = work.down.positions;
  uint32_t counted = 0;
  for (uint32_t j = work.neuron_begin; j < EndOf(work); ++j) {
    bool counts = false;
    for (size_t i = 0; i < work.rows.size() && !counts; ++i) {
      const auto* values = reinterpret_cast<const float*>(
          backend->HostRead(work.lead_values.base + i * work.lead_values.stride * sizeof(float), bytes));
      counts = values != nullptr && !(std::fabs(values[j]) < work.threshold);
    }
    counted += counts && (positions.empty() || positions[j] >= 0) ? 1 : 0;
  }
  return counted;
}

// `kept`: share of the range's neurons that are active in some row.
double VirtualQueue::SecondsOf(const ExpertWork& work, double kept) const {
  const double neurons = NeuronsOf(work);
  const auto seconds = [&](const WeightView& view, bool all) {
    return !view.base ? 0.0  // no gate
                      : VirtualRowSeconds(costs_, view.encoding, view.cols,
                                          neurons * view.rows / work.up.rows * (all ? 1 : kept), !all,
                                          expert_bytes_);
  };
  const bool led = bool{work.lead_values.base};
  const bool dense = work.sparsity == SparsityOrder::kNone;
  const bool up_leads = work.sparsity == SparsityOrder::kUp;
  const bool gate_leads = work.sparsity == SparsityOrder::kGate;
  const bool product = work.sparsity == SparsityOrder::kProduct;
  return (led && up_leads ? 0 : seconds(work.up, dense || up_leads || product)) +
         (led && gate_leads ? 0 : seconds(work.gate, dense || gate_leads || product)) +
         seconds(work.down, dense);
}

absl::Status VirtualQueue::Enqueue(const Operation& operation) {
  return std::visit([this](const auto* args) { return Run(*args); }, operation);
}

absl::Status VirtualQueue::Run(const ExpertLeadsArgs& args) {
  RETURN_IF_ERROR(inner_queue().ExpertLeads(args));
  double seconds = 0;
  for (const LeadWork& work : args.experts) {
    seconds += VirtualRowSeconds(costs_, work.lead.encoding, work.lead.cols, work.lead.rows, /*kept=*/false,
                                 expert_bytes_);
  }
  Charge(seconds);
  return absl::OkStatus();
}

absl::Status VirtualQueue::Run(const MoeExpertsArgs& args) {
  active_before_.clear();
  for (const ExpertWork& work : args.experts) {
    active_before_.push_back(work.neuron_begin > 0 && args.active ? Active(args, work) : 0);
  }
  RETURN_IF_ERROR(inner_queue().MoeExperts(args));
  double seconds = 0;
  for (size_t i = 0; i < args.experts.size(); ++i) {
    const ExpertWork& work = args.experts[i];
    const double range = NeuronsOf(work);
    const double active = work.lead_values.base ? ActiveByLead(backend_, work)
                          : args.active && work.sparsity != SparsityOrder::kNone
                              ? Active(args, work) - active_before_[i]
                              : range;
    seconds += SecondsOf(work, range == 0 ? 0 : std::min(1.0, active / range));
  }
  Charge(seconds);
  return absl::OkStatus();
}

}  // namespace sluice::inferd
