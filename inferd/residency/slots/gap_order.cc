#include "inferd/residency/slots/gap_order.h"

#include <algorithm>
#include <utility>

namespace sluice::inferd {
namespace {

// A quarter of the experts that travel at once, with two portions queued: the link continues meanwhile if an
// expert travels as long as it is computed.
uint32_t PortionOf(const SlabPlan& plan) {
  uint32_t passing = 0;
  for (const SlotClass& c : plan.classes) {
    passing += c.passing;
  }
  return std::max(1u, passing / 4);
}

}  // namespace

StreamOrder::StreamOrder(const SlabPlan& plan, Queue* queue) : queue_(queue), portion_(PortionOf(plan)) {}

void StreamOrder::HandOut(uint32_t demands, bool gaps, absl::FunctionRef<bool(uint32_t)> stays,
                          absl::FunctionRef<bool(uint32_t)> hand_out) {
  bool came = false;
  for (uint32_t i = 0; i < demands; ++i) {
    if (!gaps || !stays(i)) {
      came = hand_out(i) || came;
    }
  }
  in_gap_ = gaps && !came && !HoldsBack();
  uint32_t left = in_gap_ ? portion_ : 0;
  for (uint32_t i = 0; i < demands && left > 0; ++i) {
    if (stays(i)) {
      hand_out(i);
      --left;
    }
  }
}

void StreamOrder::Queued(Event used) {
  if (std::exchange(in_gap_, false)) {
    before_ = std::exchange(last_, used);
  }
}

}  // namespace sluice::inferd
