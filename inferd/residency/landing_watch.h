// What landed in a slab rings no bell: who has nothing else to do looks for it without sleeping, for as long
// as a tile on a fast link may take, and sleeps after that.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <thread>

namespace sluice {

class LandingWatch {
 public:
  // Without news for so long the thread sleeps: twice what a megabyte takes at 10 GB/s. A sleep and its end
  // take some 50 us.
  static constexpr int64_t kMostNanos = 200'000;

  // `on`: whether it looks at all.
  explicit LandingWatch(bool on) : on_(on) {}

  // Something came, or began to be waited for.
  void News(int64_t now) { until_ = now + kMostNanos; }

  // Whether to look again at once, after others had a chance to run.
  bool Look(int64_t now) {
    if (!on_ || now >= until_) {
      return false;
    }
    began_ = began_ == 0 ? now : began_;
    std::this_thread::yield();
    return true;
  }

  // Nanoseconds since it began to look, which nobody counted yet.
  int64_t Take(int64_t now) {
    const int64_t began = began_;
    began_ = 0;
    return began == 0 ? 0 : now - began;
  }

 private:
  const bool on_;
  int64_t until_ = 0;
  int64_t began_ = 0;  // 0: it does not look
};

}  // namespace sluice
