// When the link will have brought what is on its way into slots.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "inferd/residency/slab/expert_slots.h"
#include "inferd/residency/slots/link_pace.h"
#include "inferd/residency/slots/slot_table.h"
#include "pack/pack.h"

namespace sluice {

class LinkForecast {
 public:
  // All outlive this object.
  LinkForecast(const LinkPace* pace, const ExpertSlots* slots, const Pack* pack)
      : pace_(pace), slots_(slots), pack_(pack) {}

  // Seconds until the expert of a slot that is being filled is there, if nothing comes before it.
  double ToCome(uint32_t slot) const;
  // The same of all slots that count, one after the other.
  double ToCome(absl::FunctionRef<bool(const Slot&)> counts) const;
  // The most that an expert may take.
  double LargestSeconds() const;

 private:
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
};

// How long layers take that follow each other in a step: a running mean, of decoding and of prefill apart.
class LayerPace {
 public:
  // A layer begins at `now`; what the last one took, and those between that had no experts, is known now.
  void Begin(uint32_t layer, bool prefill, int64_t now_nanos);
  // 0: not known yet.
  double Seconds(bool prefill) const { return seconds_[prefill ? 1 : 0]; }

 private:
  double seconds_[2] = {};
  uint32_t layer_ = 0;
  int64_t began_ = 0;  // 0: no layer has
};

// How many layers of so many seconds (0: not known) pass in `seconds`: at least 1.
uint32_t LayersIn(double seconds, double layer_seconds);

}  // namespace sluice
