// The first fill of slots, before anybody waits for them: by usage, a few transfers at a time, each waited
// for no longer than the stall limit. What cannot be had now is left to the first demand.
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

namespace sluice {

class SlotFill {
 public:
  static constexpr uint32_t kWindow = 8;  // transfers in flight

  struct Cache {
    std::function<void()> poll;           // takes completions
    std::function<uint32_t()> in_flight;  // transfers without one
  };
  // `fetches` outlives this object.
  SlotFill(absl::Duration stall_limit, FetchQueue* fetches, Cache cache);

  // Something came, or waiting begins.
  void Restart();

  // `fill` an expert that no slot has, as long as its layer may keep more; it may leave it out.
  // `order`: by layer, its experts; those it does not name come after them, by number.
  absl::Status Fill(const Pack& pack, const SlotTable& table, const std::vector<std::vector<uint32_t>>& order,
                    absl::FunctionRef<absl::Status(uint32_t layer, uint32_t expert)> fill);

  // Sends a request; while weightd's ring is full and anything is in flight that makes room in it, waits and
  // sends it again.
  absl::Status Send(absl::FunctionRef<absl::Status()> send);

  // Waits until at most `most` transfers are in flight. RESOURCE_EXHAUSTED: nothing came for the limit.
  absl::Status Drain(uint32_t most);

 private:
  const absl::Duration stall_limit_;
  FetchQueue* const fetches_;
  const Cache cache_;
  StallLimit stall_;
};

}  // namespace sluice
