// Polls for tiles that landed in a slab, which send no signal. An otherwise idle thread polls without
// sleeping for as long as a tile on a fast link may take, and sleeps after that.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <thread>

namespace sluice::inferd {

class LandingPoller {
 public:
  // Maximum polling time without news: twice the time of a megabyte at 10 GB/s. A sleep and its wake-up take
  // some 50 us.
  static constexpr int64_t kMaxPollNanos = 200'000;

  // `on`: false disables polling.
  explicit LandingPoller(bool on) : on_(on) {}

  // Restarts the polling time: something arrived, or a wait began.
  void Restart(int64_t now) { until_ = now + kMaxPollNanos; }

  // True if the caller shall poll again at once, after other threads had a chance to run.
  bool ShouldPoll(int64_t now) {
    if (!on_ || now >= until_) {
      return false;
    }
    began_ = began_ == 0 ? now : began_;
    std::this_thread::yield();
    return true;
  }

  // Nanoseconds of polling since the last Take().
  int64_t Take(int64_t now) {
    const int64_t began = began_;
    began_ = 0;
    return began == 0 ? 0 : now - began;
  }

 private:
  const bool on_;
  int64_t until_ = 0;
  int64_t began_ = 0;  // 0: not polling
};

}  // namespace sluice::inferd
