// First fill of slots, before any demand: by usage, a few transfers at a time, each with the stall limit as
// timeout. Experts that cannot be had now are left to the first demand.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inferd/residency/slots/slot_table.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/stall_limit.h"
#include "pack/pack.h"

namespace sluice::inferd {

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
