// Pace of transfers into slots: link time per byte, the order in which streamed experts are handed out, and
// the first fill.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slot_table.h"
#include "inferd/model/fetch_queue.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Link time per byte.
class LinkPace {
 public:
  // `seconds_per_byte`: given value; 0: measured by `fetches`, which outlives this object.
  LinkPace(double seconds_per_byte, const FetchQueue* fetches) : said_(seconds_per_byte), fetches_(fetches) {}

  // 0: no value is given, and none was measured yet.
  double SecondsPerByte() const {
    if (said_ > 0) {
      return said_;
    }
    const uint64_t bytes = fetches_->bytes_link();
    return bytes == 0 ? 0 : fetches_->copy_seconds() / static_cast<double>(bytes);
  }

 private:
  const double said_;
  const FetchQueue* const fetches_;
};

// Hand-out order of a prompt's layer that streams more experts than it may keep.
//
// Experts that pass through their slots are computed as they arrive, so that their slots take the next ones.
// Experts that stay in their slots fill the gaps: a few at a time, while no passing one is ready, and with at
// most two such portions queued on the device, one being computed and the next. So the link hardly ever waits
// for slots, nor the device for the link. The order affects nothing but time.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates.

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

// First fill of slots, before any demand: by usage, a few transfers at a time, each with the stall limit as
// timeout. Experts that cannot be had now are left to the first demand.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class SlotFill {
 public:
  static constexpr uint32_t kWindow = 8;  // transfers in flight

  struct Cache {
    std::function<void()> poll;           // handles completions
    std::function<uint32_t()> in_flight;  // transfers without a completion
  };
  // `fetches` outlives this object.
  SlotFill(absl::Duration stall_limit, FetchQueue* fetches, Cache cache);

  // Restarts the timeout: a completion arrived, or waiting begins.
  void Restart();

  // Calls `fill` for an expert without a slot, as long as its layer may keep more; `fill` may skip it.
  // `order`: by layer, its experts; unlisted ones come after them, by number.
  absl::Status Fill(const Pack& pack, const SlotTable& table, const std::vector<std::vector<uint32_t>>& order,
                    absl::FunctionRef<absl::Status(uint32_t layer, uint32_t expert)> fill);

  // Sends a request; if weightd's ring is full and requests in flight will make room in it, waits and sends
  // it again.
  absl::Status Send(absl::FunctionRef<absl::Status()> send);

  // Waits until at most `most` transfers are in flight. RESOURCE_EXHAUSTED: nothing arrived within the
  // timeout.
  absl::Status Drain(uint32_t most);

 private:
  const absl::Duration stall_limit_;
  FetchQueue* const fetches_;
  const Cache cache_;
  StallLimit stall_;
};

}  // namespace sluice::inferd
