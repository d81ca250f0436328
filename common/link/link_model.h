// LinkModel: when the bytes that are sent over a link of a stated rate and latency arrive, on whatever clock
// the caller has: weightd's throttled device `sim` asks it with real time, a modelled link with virtual time.
//
// It is a token bucket: copies leave one after another at the rate, each no earlier than its latency after it
// was submitted (so that copies in a queue hide each other's latency, as on several streams), and a submitter
// that overslept may have its copy counted from the moment it should have woken.
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

// `gbps`: 1e9 bytes a second, 0 for no limit. Negative and absurd values are held at the nearest sensible
// one.
LinkRate MakeLinkRate(double gbps, double latency_us);

class LinkModel {
 public:
  // How far back Book() reaches for a submitter that overslept: the bucket's depth. Within any second it can
  // add so much to the rate and no more (0.2 %).
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
  double fraction_ = 0;     // of a nanosecond, that free_nanos_ is short of it
};

}  // namespace sluice
