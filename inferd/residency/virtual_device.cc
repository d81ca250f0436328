#include "inferd/residency/virtual_device.h"

#include <algorithm>
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

// `kept`: share of the range's neurons that some row keeps.
double VirtualQueue::BytesOf(const ExpertWork& work, double kept) const {
  const double neurons = EndOf(work) - work.neuron_begin;
  const double up = RowBytesOf(work.up);
  const double gate = RowBytesOf(work.gate);
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
    const double active =
        args.active && work.sparsity != SparsityOrder::kNone ? Active(args, work) - active_before_[i] : range;
    seconds += BytesOf(work, range == 0 ? 0 : std::min(1.0, active / range)) /
               static_cast<double>(expert_bytes_) * costs_.compute_ms * 1e-3;
  }
  Charge(seconds);
  return absl::OkStatus();
}

}  // namespace sluice
