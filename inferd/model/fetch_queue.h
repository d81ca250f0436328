// The engine's side of the request rings: names requests, tracks outstanding ones, hands out completions, and
// measures waiting time. The only consumer of completions.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// Purpose of a request: an expert, or an extent of dense weights.
struct FetchKey {
  RequestClass request_class = RequestClass::kDemand;
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint32_t extent = FetchRequest::kNoExtent;

  bool dense() const { return extent != FetchRequest::kNoExtent; }
};

// Error of a step whose expert weightd could not fetch: DEADLINE_EXCEEDED with the reason WEIGHTS_LATE if the
// disk did not answer, else the completion's own code.
absl::Status FetchError(const FetchKey& key, absl::StatusCode code);

// Receives the completions of extents that are not weights of every step (rows of tables), whoever polls.
class ExtentListener {
 public:
  virtual ~ExtentListener() = default;
  virtual void OnExtent(uint32_t extent, const FetchCompletion& completion) = 0;
  // The connection is lost with all outstanding requests.
  virtual void OnLost() = 0;
};

class FetchQueue {
 public:
  // Limits of a request's name.
  static constexpr uint32_t kMaxLayers = 1u << 14;
  static constexpr uint32_t kMaxExperts = 1u << 16;

  // All pointers outlive the queue. `clock` measures its waits.
  FetchQueue(WeightClient* client, Backend* backend, const Clock* clock)
      : client_(client), backend_(backend), clock_(clock) {}

  // Fetches parts of an expert; with a target also into a slab. Returns the request's id. RESOURCE_EXHAUSTED:
  // the ring is full, poll first. UNAVAILABLE: the connection is lost. REQUIRES: layer and expert below the
  // limits.
  absl::StatusOr<uint64_t> FetchExpert(RequestClass request_class, uint64_t step, uint32_t layer,
                                       uint32_t expert, PartSet parts = kAllParts,
                                       const TransferTarget* target = nullptr);
  // Sets the listener; null: none. It outlives the queue, or is replaced before it is destroyed.
  void SetListener(ExtentListener* listener) { listener_ = listener; }

  // Fetches an extent of dense weights or of rows; with a target also into a slab.
  absl::Status FetchDense(uint32_t extent, const TransferTarget* target = nullptr);

  // Handles every completion that has arrived; its extents stay resident until `handle` returns.
  size_t Poll(absl::FunctionRef<void(const FetchKey&, const FetchCompletion&)> handle);

  // Blocks until a completion may be there, the client was woken, or `deadline`; compute workers are parked
  // meanwhile, because weightd needs a CPU then. UNAVAILABLE: the connection is lost.
  absl::Status Wait(absl::Time deadline);

  // Adds a wait for something other than a completion, on a clock that was advanced meanwhile.
  void CountStall(int64_t nanos) { stall_nanos_ += nanos; }

  // Adds a wait for completions without Wait(), in real time.
  void CountPolled(int64_t nanos) {
    stall_nanos_ += nanos;
    real_stall_nanos_ += nanos;
  }

  // The connection is lost with all outstanding requests.
  void Forget();

  uint32_t outstanding() const { return outstanding_dense_ + outstanding_experts_; }
  uint32_t outstanding_experts() const { return outstanding_experts_; }
  uint64_t bytes_ssd() const { return bytes_ssd_; }
  // Bytes of experts, like the next two: dense weights are loaded once and do not affect tokens' waits.
  uint64_t bytes_link() const { return bytes_link_; }
  // Time of transfers from their first byte to their last, overlaps counted twice.
  double copy_seconds() const { return static_cast<double>(copy_us_) * 1e-6; }
  int64_t stall_nanos() const { return stall_nanos_; }
  // stall_nanos() by the machine's clock.
  int64_t real_stall_nanos() const { return real_stall_nanos_; }

 private:
  absl::Status Submit(FetchRequest* request);

  WeightClient* const client_;
  Backend* const backend_;
  const Clock* const clock_;
  const MonotonicClock real_clock_;
  ExtentListener* listener_ = nullptr;
  uint32_t outstanding_dense_ = 0;
  uint32_t outstanding_experts_ = 0;
  uint32_t serial_ = 0;
  uint64_t bytes_ssd_ = 0;
  uint64_t bytes_link_ = 0;
  uint64_t copy_us_ = 0;
  int64_t stall_nanos_ = 0;
  int64_t real_stall_nanos_ = 0;
};

// Timeout of waits for bytes. Only time in which this process waited counts: neither computing, nor time in
// which the process was stopped.
//
// Thread safety: none; one thread's.

class StallLimit {
 public:
  explicit StallLimit(absl::Duration limit) : limit_(limit) {}

  absl::Duration limit() const { return limit_; }
  void set_limit(absl::Duration limit) { limit_ = limit; }

  // Restarts the timeout: something arrived, or a wait begins at `now`.
  void Restart(absl::Time now) {
    since_ = now;
    due_ = absl::InfiniteFuture();
  }

  // True if nothing arrived within the limit. If the last wait ended so late that the process was stopped
  // meanwhile (a suspended machine, a frozen cgroup, a debugger), which also applies to weightd or is made up
  // for by now, counting restarts.
  bool Exceeded(absl::Time now) {
    constexpr absl::Duration kStopped = absl::Seconds(1);  // no scheduler delays a thread for so long
    if (now > due_ + kStopped) {
      Restart(now);
    }
    return now >= since_ + limit_;
  }

  // End of a wait that begins at `now` and may last until `until`; not before `now`, else the wait would seem
  // to end late. Waits are short: an earlier check tells a stop from waiting.
  absl::Time EndOfWait(absl::Time now, absl::Time until = absl::InfiniteFuture()) {
    constexpr absl::Duration kLongestWait = absl::Seconds(1);
    due_ = std::max(now, std::min({until, since_ + limit_, now + kLongestWait}));
    return due_;
  }

 private:
  absl::Duration limit_;
  absl::Time since_;
  absl::Time due_ = absl::InfiniteFuture();  // planned end of the last wait
};

}  // namespace sluice::inferd
