// Forecasts the arrival of experts that travel into slots.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "inferd/residency/slab/expert_slots.h"
#include "inferd/residency/slots/link_pace.h"
#include "inferd/residency/slots/slot_table.h"
#include "pack/pack.h"

namespace sluice::inferd {

class LinkForecast {
 public:
  // All pointers outlive this object.
  LinkForecast(const LinkPace* pace, const ExpertSlots* slots, const Pack* pack)
      : pace_(pace), slots_(slots), pack_(pack) {}

  // Seconds until the expert of a slot being filled has arrived, if no other transfer precedes it.
  double ToCome(uint32_t slot) const;
  // Sum of ToCome() over all slots for which `counts` is true.
  double ToCome(absl::FunctionRef<bool(const Slot&)> counts) const;
  // Maximum time of an expert.
  double LargestSeconds() const;

 private:
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
};

// Duration of consecutive layers in a step: a running mean, separate for decoding and prefill.
class LayerPace {
 public:
  // Begins a layer at `now`. This defines the time of the last layer, and of layers without experts between
  // them.
  void Begin(uint32_t layer, bool prefill, int64_t now_nanos);
  // Mean in seconds; 0: not known yet.
  double Seconds(bool prefill) const { return seconds_[prefill ? 1 : 0]; }

 private:
  double seconds_[2] = {};
  uint32_t layer_ = 0;
  int64_t began_ = 0;  // 0: no layer has begun
};

// Number of layers of `layer_seconds` (0: not known) that pass in `seconds`: at least 1.
uint32_t LayersIn(double seconds, double layer_seconds);

}  // namespace sluice::inferd
