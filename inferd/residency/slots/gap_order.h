// In which order a prompt's layer that streams more experts than it may keep hands out what is ready.
//
// Experts that pass through their slots are computed as they arrive, so that their slots take the next ones.
// Those that stay in theirs fill the gaps: a few at a time, when nothing else is there, and the device has
// two such portions at most before it, one that it computes and the next. So the link hardly ever waits for
// slots, nor the device for the link. It decides nothing but time.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "inferd/residency/slots/slab_plan.h"
#include "kernels/backend.h"

namespace sluice {

class GapOrder {
 public:
  // `queue`: of what is handed out; outlives this object.
  GapOrder(const SlabPlan& plan, Queue* queue);

  // Calls `hand_out` for the demands [0, demands) whose turn it is; it says whether anything of one was there
  // to be handed out. `stays`: which of them are ready in slots that they keep. `gaps`: whether experts wait
  // for slots; if none does, it is everybody's turn.
  void HandOut(uint32_t demands, bool gaps, absl::FunctionRef<bool(uint32_t)> stays,
               absl::FunctionRef<bool(uint32_t)> hand_out);
  // What the last HandOut() gave has been queued before `used`.
  void Queued(Event used);
  // Whether what stays waits for the device, while there are gaps to fill.
  bool HoldsBack() const { return !queue_->IsDone(before_); }

 private:
  Queue* const queue_;
  const uint32_t portion_;  // experts
  bool in_gap_ = false;     // what was handed out last stays in its slots
  Event last_;              // behind what was handed out so last,
  Event before_;            // and before that
};

}  // namespace sluice
