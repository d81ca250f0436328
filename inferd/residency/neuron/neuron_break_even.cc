// Measures, at the start, the share of an expert's neurons above which copying it whole is faster than
// gathering, with transfers of an expert into an empty slot.
#include <algorithm>

#include "common/status.h"
#include "inferd/residency/neuron/neuron_residency.h"

namespace sluice::inferd {
namespace {

constexpr int kBreakEvenRounds = 5;  // the fastest counts
// CORM's share, if nothing can be measured.
constexpr double kDefaultShare = 0.75;
// Lower bound: a smaller measured share is noise.
constexpr double kMinShare = 0.05;

}  // namespace

absl::Status NeuronResidency::MeasureBreakEven() {
  copy_all_share_ = options_.copy_all_share;
  if (copy_all_share_ >= 0) {
    return absl::OkStatus();
  }
  copy_all_share_ = kDefaultShare;
  uint32_t layer = 0;
  while (layer < pack_.config().layers.size() && pack_.expert_count(layer) == 0) {
    ++layer;
  }
  if (!slots_->CanTake(layer, 0)) {
    return absl::OkStatus();  // weightd died in an earlier attempt
  }
  const uint32_t slot = slots_->Take(layer, 0, SlotTable::For::kDemand, NoVictim);
  if (slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  if (!slots_->lead_resident()) {
    RETURN_IF_ERROR(slots_->FetchLead(FetchKind::kDemand, step_, layer, 0, slot));
    RETURN_IF_ERROR(fill_.Drain(0));
  }
  const uint32_t width = slots_->layout(layer, 0).width;
  double all = 0;
  double half = 0;
  for (int round = 0; round < kBreakEvenRounds && slots_->HasLead(layer, 0); ++round) {
    ASSIGN_OR_RETURN(const double whole, TimeNeurons(slot, width, 1));
    ASSIGN_OR_RETURN(const double gathered, TimeNeurons(slot, width, 2));
    all = round == 0 ? whole : std::min(all, whole);
    half = round == 0 ? gathered : std::min(half, gathered);
  }
  if (slots_->CanTake(layer, 0)) {
    return absl::OkStatus();  // its lead did not arrive
  }
  slots_->FreeSlot(slot);
  if (all > 0 && half > 0) {
    const double gathered_each = half / ((width + 1) / 2);
    copy_all_share_ = std::clamp(all / gathered_each / width, kMinShare, 1.0);
  }
  return absl::OkStatus();
}

// Microseconds of the copy of every `each`-th neuron; 0 if it did not complete.
absl::StatusOr<double> NeuronResidency::TimeNeurons(uint32_t slot, uint32_t width, uint32_t each) {
  slots_->neurons().Reset(slot, width);
  uint32_t count = 0;
  for (uint32_t neuron = 0; neuron < width; neuron += each) {
    list_[count++] = neuron;
  }
  last_copy_us_ = 0;
  RETURN_IF_ERROR(slots_->FetchNeurons(FetchKind::kDemand, step_, slot, {list_.data(), count}));
  RETURN_IF_ERROR(fill_.Drain(0));
  const bool came = slots_->neurons().present_count(slot) == count;
  slots_->neurons().Reset(slot, width);
  return came ? last_copy_us_ : 0;
}

std::string NeuronResidency::Describe() const {
  const uint64_t leads = slots_->lead_resident() ? LeadBytes(pack_, slots_->lead()) : 0;
  return absl::StrCat("neurons in ", slots_->plan().slots, " slots of ", slots_->plan().bytes, " bytes, ",
                      slots_->lead() == Part::kUp ? "up" : "gate", " parts ",
                      leads > 0 ? absl::StrCat("stay (", leads, " bytes)") : std::string("in the slots"),
                      ", all of an expert's copied above ", copy_all_share_, " of them",
                      options_.copy_all_share < 0 ? " (measured)" : "",
                      HasRoomAhead() ? "" : ", no room for neurons of the next layer");
}

}  // namespace sluice::inferd
