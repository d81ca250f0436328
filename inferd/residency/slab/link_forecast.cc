#include "inferd/residency/slab/link_forecast.h"

#include <algorithm>
#include <cmath>

namespace sluice::inferd {
namespace {

constexpr double kLayerShare = 0.125;  // weight of a layer's time in the running mean
constexpr double kRounding = 1e-9;     // tolerance of a quotient: a whole number of layers is not one more
constexpr double kMaxForecastLayers = 1e6;

}  // namespace

double LinkForecast::ToCome(uint32_t index) const {
  const Slot& slot = slots_->table().slot(index);
  return pace_->SecondsPerByte() * static_cast<double>(pack_->expert_bytes(slot.layer, slot.expert)) *
         (1 - static_cast<double>(slots_->Landed(index)) / slots_->WidthOf(slot.layer));
}

double LinkForecast::ToCome(absl::FunctionRef<bool(const Slot&)> counts) const {
  const SlotTable& table = slots_->table();
  double seconds = 0;
  uint32_t left = table.filling();
  for (uint32_t i = 0; i < table.size() && left > 0; ++i) {
    const Slot& slot = table.slot(i);
    left -= slot.state == SlotState::kFilling ? 1 : 0;
    if (slot.state == SlotState::kFilling && slot.request != 0 && counts(slot)) {
      seconds += ToCome(i);
    }
  }
  return seconds;
}

double LinkForecast::LargestSeconds() const {
  return pace_->SecondsPerByte() * static_cast<double>(pack_->largest_expert_bytes());
}

void LayerPace::Begin(uint32_t layer, bool prefill, int64_t now_nanos) {
  if (layer > layer_ && began_ > 0) {
    const double took = static_cast<double>(now_nanos - began_) * 1e-9 / (layer - layer_);
    double& mean = seconds_[prefill ? 1 : 0];
    mean = mean == 0 ? took : mean + (took - mean) * kLayerShare;
  }
  layer_ = layer;
  began_ = now_nanos;
}

uint32_t LayersIn(double seconds, double layer_seconds) {
  return layer_seconds > 0 ? static_cast<uint32_t>(std::clamp(std::ceil(seconds / layer_seconds - kRounding),
                                                              1.0, kMaxForecastLayers))
                           : 1;
}

}  // namespace sluice::inferd
