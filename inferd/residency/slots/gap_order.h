// Hand-out order of a prompt's layer that streams more experts than it may keep.
//
// Experts that pass through their slots are computed as they arrive, so that their slots take the next ones.
// Experts that stay in their slots fill the gaps: a few at a time, while no passing one is ready, and with at
// most two such portions queued on the device, one being computed and the next. So the link hardly ever waits
// for slots, nor the device for the link. The order affects nothing but time.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "inferd/residency/slots/slab_plan.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class StreamOrder {
 public:
  // `queue`: runs the work handed out; outlives this object.
  StreamOrder(const SlabPlan& plan, Queue* queue);

  // Calls `hand_out` for the demands of [0, demands) whose turn it is; it returns true if anything of the
  // demand was ready and handed out. `stays`: true for experts ready in slots that they keep. `gaps`: true if
  // experts wait for slots; otherwise every demand has its turn.
  void HandOut(uint32_t demands, bool gaps, absl::FunctionRef<bool(uint32_t)> stays,
               absl::FunctionRef<bool(uint32_t)> hand_out);
  // The work of the last HandOut() has been queued before `used`.
  void Queued(Event used);
  // True if staying experts wait for the device while there are gaps to fill.
  bool HoldsBack() const { return !queue_->IsDone(before_); }

 private:
  Queue* const queue_;
  const uint32_t portion_;  // experts
  bool in_gap_ = false;     // the last HandOut() gave staying experts
  Event last_;              // behind the last portion of them
  Event before_;            // behind the portion before that
};

}  // namespace sluice::inferd
