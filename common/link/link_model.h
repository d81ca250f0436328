// LinkModel: arrival times of bytes over a link of a given rate and latency, on the caller's clock: weightd's
// throttled device `sim` uses real time, a modelled link uses virtual time.
//
// The model is a token bucket. Copies leave one after another at the rate, each no earlier than its latency
// after its submission, so queued copies hide each other's latency, as on several streams. A submitter that
// overslept may have its copy counted from the moment at which it should have woken.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>

namespace sluice {

struct LinkRate {
  uint64_t bytes_per_second = 0;  // 0: no limit
  int64_t latency_nanos = 0;      // from a copy's submission to its first byte

  bool throttled() const { return bytes_per_second != 0 || latency_nanos != 0; }
  bool operator==(const LinkRate&) const = default;
};

// `gbps`: 1e9 bytes a second, 0 for no limit. Negative and out-of-range values are clamped.
LinkRate MakeLinkRate(double gbps, double latency_us);

class LinkModel {
 public:
  // Depth of the bucket: Book() reaches back this far for a submitter that overslept. Within any second this
  // adds at most 0.2 % to the rate.
  static constexpr int64_t kMaxBackdateNanos = 2'000'000;

  explicit LinkModel(const LinkRate& rate) : rate_(rate) {}

  // Sends a copy of `bytes` that could have been submitted at `ready_nanos`; returns when its last byte
  // arrives, which may be before `now_nanos` when the submitter overslept. `now_nanos` never runs backwards.
  int64_t Book(uint64_t bytes, int64_t ready_nanos, int64_t now_nanos);

  // Nanoseconds that `bytes` take at the rate, the latency left out.
  double Nanos(uint64_t bytes) const;
  const LinkRate& rate() const { return rate_; }

 private:
  const LinkRate rate_;
  int64_t free_nanos_ = 0;  // the last booked byte's arrival
  double fraction_ = 0;     // of a nanosecond, to be added to free_nanos_
};

}  // namespace sluice
