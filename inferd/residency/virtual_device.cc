#include "inferd/residency/virtual_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/pack/row_layout.h"
#include "common/status.h"

namespace sluice {
namespace {

double RowBytesOf(const WeightView& view) { return static_cast<double>(RowBytes(view.encoding, view.cols)); }

uint32_t EndOf(const ExpertWork& work) { return work.neuron_end == 0 ? work.gate.rows : work.neuron_end; }

}  // namespace

std::string VirtualDevice::Describe() const {
  return absl::StrCat(behind_->Describe(), ", timed as ", ShowVirtualCosts(costs_));
}

// Neurons counted so far for the work's rows, all tiles together.
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

// Of a work whose lead values are made already: the neurons of its range that count for any row and are
// there.
uint32_t VirtualQueue::CountedByLead(const ExpertWork& work) const {
  const uint64_t bytes = uint64_t{work.up.rows} * sizeof(float);
  const BufferRef list = work.down.positions;
  const auto* positions = list ? reinterpret_cast<const int32_t*>(backend_->HostRead(list, bytes)) : nullptr;
  uint32_t counted = 0;
  for (uint32_t j = work.neuron_begin; j < EndOf(work); ++j) {
    bool counts = false;
    for (size_t i = 0; i < work.rows.size() && !counts; ++i) {
      const auto* values = reinterpret_cast<const float*>(
          backend_->HostRead(work.lead_values.base + i * work.lead_values.stride * sizeof(float), bytes));
      counts = values != nullptr && !(std::fabs(values[j]) < work.threshold);
    }
    counted += counts && (positions == nullptr || positions[j] >= 0) ? 1 : 0;
  }
  return counted;
}

// `kept`: share of the range's neurons that some row keeps.
double VirtualQueue::BytesOf(const ExpertWork& work, double kept) const {
  const double neurons = EndOf(work) - work.neuron_begin;
  const bool led = bool{work.lead_values.base};
  const double up = led && work.sparsity == SparsityOrder::kUp ? 0 : RowBytesOf(work.up);
  const double gate = led && work.sparsity == SparsityOrder::kGate ? 0 : RowBytesOf(work.gate);
  const double down = RowBytesOf(work.down);
  switch (work.sparsity) {
    case SparsityOrder::kNone:
      return neurons * (up + gate + down);
    case SparsityOrder::kUp:
      return neurons * (up + kept * (gate + down));
    case SparsityOrder::kGate:
      return neurons * (gate + kept * (up + down));
    case SparsityOrder::kProduct:
      return neurons * (up + gate + kept * down);
  }
  return 0;
}

absl::Status VirtualQueue::ExpertLeads(const ExpertLeadsArgs& args) {
  RETURN_IF_ERROR(behind_->ExpertLeads(args));
  double bytes = 0;
  for (const LeadWork& work : args.experts) {
    bytes += RowBytesOf(work.lead) * work.lead.rows;
  }
  Charge(bytes / static_cast<double>(expert_bytes_) * costs_.compute_ms * 1e-3);
  return absl::OkStatus();
}

absl::Status VirtualQueue::MoeExperts(const MoeExpertsArgs& args) {
  active_before_.clear();
  for (const ExpertWork& work : args.experts) {
    active_before_.push_back(work.neuron_begin > 0 && args.active ? Active(args, work) : 0);
  }
  RETURN_IF_ERROR(behind_->MoeExperts(args));
  double seconds = 0;
  for (size_t i = 0; i < args.experts.size(); ++i) {
    const ExpertWork& work = args.experts[i];
    if (clock_->cpu().TakeMark(work.up.base)) {
      continue;
    }
    const double range = EndOf(work) - work.neuron_begin;
    const double active = work.lead_values.base ? CountedByLead(work)
                          : args.active && work.sparsity != SparsityOrder::kNone
                              ? Active(args, work) - active_before_[i]
                              : range;
    seconds += BytesOf(work, range == 0 ? 0 : std::min(1.0, active / range)) /
               static_cast<double>(expert_bytes_) * costs_.compute_ms * 1e-3;
  }
  Charge(seconds);
  return absl::OkStatus();
}

}  // namespace sluice
