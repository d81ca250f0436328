// Window of a layer's demands in flight, and the retry time of a fill that found no room in weightd's DRAM.
//
// The window grows by one with each demand that completes. A refusal shrinks it to the number still in
// flight; then nothing more is requested until these have ended and a pause has passed.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice::inferd {

class FetchWindow {
 public:
  // Pause before a fill that found no room is retried.
  static constexpr absl::Duration kRetryPace = absl::Milliseconds(1);

  // `most`: maximum demands in flight. The first `quick_retries` refusals in a row are retried without a
  // pause.
  explicit FetchWindow(uint32_t most, uint32_t quick_retries = 0)
      : most_(most), quick_retries_(quick_retries), window_(most) {}

  // True if a request may be sent now, with `in_flight` demands outstanding.
  bool CanRequest(uint32_t in_flight, absl::Time now) const {
    return !no_room_ || (in_flight == 0 && now >= retry_at_);
  }
  bool IsFull(uint32_t in_flight) const { return in_flight >= window_; }

  // A demand completed.
  void OnCompleted() {
    window_ = std::min(most_, window_ + 1);
    refusals_ = 0;
  }
  // A demand found no room; `in_flight` others are outstanding.
  void OnRefused(uint32_t in_flight, absl::Time now) {
    no_room_ = true;
    window_ = std::max(1u, in_flight);
    ++refusals_;
    retry_at_ = refusals_ > quick_retries_ ? now + kRetryPace : absl::InfinitePast();
  }
  // There may be room again: a demand completed, memory was released, or another layer begins.
  void OnRoomMade() {
    no_room_ = false;
    refusals_ = 0;
  }

  bool no_room() const { return no_room_; }
  absl::Time retry_at() const { return retry_at_; }

 private:
  const uint32_t most_;
  const uint32_t quick_retries_;
  uint32_t window_;
  bool no_room_ = false;   // since room was made
  uint32_t refusals_ = 0;  // since the last completion or release
  absl::Time retry_at_;    // earliest retry while no_room_
};

}  // namespace sluice::inferd
