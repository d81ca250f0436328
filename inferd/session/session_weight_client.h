// SessionWeightClient: the WeightClient over a real session with a weightd process.
//
// Opens the pack itself for its tables, a session over gRPC (weights_rpc_client.h) and joins it
// (weight_session.h). After weightd's death the same object opens the next session by Reconnect().
//
// Thread safety: as in weight_client.h: belongs to the engine thread, except Describe(), counters() and
// Wake().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/session_abi.h"
#include "inferd/model/request_table.h"
#include "inferd/model/weight_client.h"
#include "inferd/session/weight_session.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct SessionWeightClientOptions {
  std::string socket;            // weightd's gRPC socket, an absolute path. REQUIRED
  std::string pack_dir;          // the pack as this process sees it; weightd finds it by model_id. REQUIRED
  uint32_t compute_threads = 1;  // the reserved minimum is 2 x the largest expert x this
  std::string client_name = "inferd";  // in weightd's logs and stats
  ControlLayout layout;                // sizes of the rings
  // Polling time for completions before a sleep. 0: a wake across virtual CPUs costs 44 us, but a spin uses
  // the CPU that weightd may need.
  absl::Duration spin = absl::ZeroDuration();
};

class SessionWeightClient final : public WeightClient {
 public:
  // Opens the pack and a session; retries while weightd is UNAVAILABLE, until `deadline`. Errors of
  // Pack::Open and of OpenSession.
  static absl::StatusOr<std::unique_ptr<SessionWeightClient>> Connect(SessionWeightClientOptions options,
                                                                      absl::Time deadline);
  // Closes the session. Leases must have been released: nothing is readable afterwards.
  ~SessionWeightClient() override;

  const Pack& pack() const override { return *pack_; }
  absl::Status SetSegmentObserver(SegmentObserver* observer) override;
  bool TryLease(uint32_t extent, ExtentLease* lease) override;
  void Release(uint32_t extent, uint64_t step) override;
  void SetScan(bool scan) override { scan_ = scan; }
  bool IsResident(uint32_t extent) const override;
  absl::Status Submit(const FetchRequest& request) override;
  void BeginSubmitBatch() override { ++batch_depth_; }
  void EndSubmitBatch() override;
  absl::StatusOr<uint32_t> OfferSlab(const SlabOffer& offer) override;
  absl::Status RevokeSlabs(absl::Time deadline) override;
  uint32_t LandedTiles(uint64_t id) const override;
  void Cancel(uint64_t id) override;
  void CancelPrefetches(uint64_t step, uint32_t layer) override;
  size_t Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) override;
  absl::Status Wait(absl::Time deadline) override;
  void Wake() override;
  bool connected() const override;
  absl::Status Reconnect(absl::Time deadline) override;
  WeightClientCounters counters() const override;
  std::string Describe() const override;

  // Identifies the life of weightd that the session belongs to; 0 without a session.
  uint64_t boot_epoch() const { return session_ == nullptr ? 0 : session_->opened().boot_epoch; }
  // weightd's budget when the session was opened; 0 without a session.
  uint64_t dram_budget_bytes() const {
    return session_ == nullptr ? 0 : session_->opened().dram_budget_bytes;
  }
  // Reason of the session's end; OK while it lives.
  absl::Status lost() const;
  // Number of wake-ups of a sleeping weightd.
  uint64_t wakeups() const { return wakeups_.value(); }

 private:
  // A value with one writing thread and any number of readers.
  class Counter {
   public:
    void Add(uint64_t n) {
      value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    uint64_t value() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<uint64_t> value_{0};
  };
  // A string with one writing thread and any number of readers.
  class SharedText {
   public:
    void Set(std::string text) {
      const MutexLock lock(&mutex_);
      text_ = std::move(text);
    }
    std::string Get() const {
      const MutexLock lock(&mutex_);
      return text_;
    }

   private:
    mutable Mutex mutex_;
    std::string text_ ABSL_GUARDED_BY(mutex_);
  };
  struct CancelPoint {
    uint64_t step = 0;
    uint32_t layer = 0;
  };

  SessionWeightClient(SessionWeightClientOptions options, std::unique_ptr<const Pack> pack, UniqueFd wake);
  absl::Status OpenSession(absl::Time deadline);
  void DropSession(absl::Time deadline);
  // Lets weightd close the session, and waits until it has unmapped its slabs or its process has exited.
  absl::Status Close(const OpenedSession& opened, int side, int process, absl::Time deadline) const;
  void ForgetRequests();
  absl::Status Push(SubmissionEntry entry, const PendingRequest& request,
                    absl::Span<const uint32_t> neurons = {});
  bool WasConnected();
  void RingNow();
  bool SendOneCancel(uint64_t caller_id);
  void SendCancel(const CancelPoint& point);
  bool Handle(const CompletionEntry& entry, absl::FunctionRef<void(const FetchCompletion&)> handle);
  bool SpinForCompletion();

  const SessionWeightClientOptions options_;
  const std::unique_ptr<const Pack> pack_;
  const std::vector<uint64_t> extent_bytes_;  // by extent
  const UniqueFd wake_;                       // eventfd
  std::unique_ptr<WeightSession> session_;    // null when a Reconnect failed
  RequestTable requests_;
  std::optional<CancelPoint> unsent_cancel_;  // not sent: the ring had no room
  std::vector<uint64_t> unsent_ids_;          // single requests to cancel, not sent
  uint32_t next_slab_ = 0;                    // never reused, across sessions too
  SegmentObserver* observer_ = nullptr;
  uint64_t step_ = 0;   // step of the last release
  uint64_t order_ = 0;  // releases in that step
  bool scan_ = false;
  int64_t next_drain_nanos_ = 0;
  int64_t next_look_nanos_ = 0;          // time of the next check for a dead weightd
  uint32_t batch_depth_ = 0;             // nesting of doorbell batches
  std::optional<int64_t> batch_since_;   // time of the first entry queued without a doorbell
  absl::Status lost_;                    // reason of the last session's end, when session_ is null
  std::optional<absl::Status> revoked_;  // RevokeSlabs()'s result in this session

  Counter leases_;
  Counter releases_;
  Counter lease_misses_;
  Counter demand_requests_;
  Counter prefetch_requests_;
  Counter ended_requests_;  // completed or forgotten, cancels left out
  Counter bytes_ssd_;
  Counter bytes_link_;
  Counter reconnects_;
  Counter wakeups_;
  SharedText description_;
};

// Conversion of WeightClient requests to ring entries, and of completions back.
//
// Thread safety: pure functions, safe to call from any thread.

// An entry that names no extent, no slab and no progress word.
SubmissionEntry EmptyEntry(Opcode opcode, RequestClass request_class);

// Sets all but the fields that the session fills: ids, the list of neurons, the progress word.
SubmissionEntry EntryOf(const FetchRequest& request);

// `caller_id`: id of the completed request. A code that is no status code becomes INTERNAL.
FetchCompletion CompletionOf(const CompletionEntry& entry, uint64_t caller_id);

}  // namespace sluice::inferd
