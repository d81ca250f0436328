// Helpers of all handlers: facts of a call, and calls that end at once.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "daemon/grpc_status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "inferd/grpc/service_request.h"
#include "inferd/grpc/service_response.h"
#include "inferd/grpc/stream_pump.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// ServingContext for gRPC's services.
struct ServiceContext : ServingContext {
  StreamPump* pump = nullptr;
};

// Returns the client, the request id and the deadline of a call.
CallFacts FactsOf(const grpc::CallbackServerContext& call);

// Ends a unary call with `status`.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* call, absl::Status status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(Explain(std::move(status))));
  return reactor;
}

// Ends a streaming call with `status` without a message.
template <typename Response>
grpc::ServerWriteReactor<Response>* Refuse(absl::Status status) {
  class Refusal final : public grpc::ServerWriteReactor<Response> {
   public:
    explicit Refusal(const grpc::Status& status) { this->Finish(status); }
    void OnDone() override { delete this; }
  };
  return new Refusal(ToGrpcStatus(Explain(std::move(status))));
}

// ServiceStream: one server-streaming call between the engine, which appends, and a reader of any speed.
//
// One write is in flight at a time; output appended meanwhile waits in the subclass, which merges or queues
// it. A reader that accepts nothing for `stall_timeout`, or has more than `max_unsent_bytes` unread, is cut:
// RESOURCE_EXHAUSTED (SLOW_CONSUMER). Cancellation reaches the engine at once and ends the call.
//
// StreamPump keeps the call alive until OnDone; the engine holds it as its sink, possibly longer. Engine
// output after the end is dropped.
//
// Thread safety: thread-safe. The engine's thread only appends and calls Wake(); the pump's thread and gRPC's
// own threads call gRPC. gRPC runs no reaction inside of StartWrite, Finish or TryCancel, so these are called
// with the mutex held.

template <typename Response>
class ServiceStream : public grpc::ServerWriteReactor<Response>,
                      public PumpedCall,
                      public std::enable_shared_from_this<ServiceStream<Response>> {
 public:
  ServiceStream(const ServiceContext& context, grpc::CallbackServerContext* call, Label label,
                const std::vector<std::string>& ids)
      : PumpedCall(context, std::move(label), ids), pump_(context.pump), call_(call) {}

  // Ends the call with `status` after all appended output was written; only the first call has an effect.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    EndLocked(std::move(status));
    Wake();
  }

  void Pump() final ABSL_LOCKS_EXCLUDED(mutex_) {
    bool cut = false;
    {
      const absl::MutexLock lock(&mutex_);
      cut = std::exchange(cut_pending_, false);
      PumpLocked();
    }
    if (cut) {
      CancelWork();
    }
  }

  void CheckStall(absl::Time now) final ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const absl::MutexLock lock(&mutex_);
      const absl::Duration timeout = serving().limits.stall_timeout.Get();
      if (done_ || !writing_ || now < write_began_ + timeout) {
        return;
      }
      if (finished_) {
        // The reader has not read the error either.
        if (now >= write_began_ + 2 * timeout) {
          call_->TryCancel();
        }
        return;
      }
      CutLocked(absl::StrCat("nothing was read for ", absl::FormatDuration(timeout)));
    }
    Pump();
  }

  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    SetUnsent(unsent() - std::exchange(in_flight_bytes_, 0));
    if (!ok) {
      EndLocked(absl::CancelledError("the client went away"));
      discard_ = true;
    }
    PumpLocked();
  }

  void OnCancel() final ABSL_LOCKS_EXCLUDED(mutex_) {
    CancelWork();
    const absl::MutexLock lock(&mutex_);
    EndLocked(absl::CancelledError("cancelled by the client, or its deadline passed"));
    discard_ = true;
    PumpLocked();
  }

  void OnDone() final ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const absl::MutexLock lock(&mutex_);
      done_ = true;
    }
    pump_->Remove(this);
  }

 protected:
  // Moves pending output into *out and returns its bytes as counted by Appended; nullopt if there is nothing
  // to write yet. `ending`: nothing more will be appended.
  virtual std::optional<size_t> Take(bool ending, Response* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Drops pending output.
  virtual void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Logs that the call ends with `status`.
  virtual void Ending(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Tells the engine that the result is no longer needed.
  virtual void CancelWork() ABSL_LOCKS_EXCLUDED(mutex_) { CancelRequests(); }

  // Counts about `bytes` of appended output; above the limit the stream is cut if `may_cut`.
  void Appended(size_t bytes, bool may_cut) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t maximum = serving().limits.max_unsent_bytes.Get();
    SetUnsent(unsent() + bytes);
    if (unsent() > maximum && may_cut) {
      CutLocked(absl::StrCat("more than ", maximum, " bytes wait to be read"));
    }
  }
  // True if appended output still has a reader.
  bool Open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !end_.has_value() && !finished_; }
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_.has_value()) {
      end_ = std::move(status);
    }
  }
  // Schedules the call in the pump. No effect once the call has ended: then the server may be gone.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!finished_) {
      pump_->Schedule(this->shared_from_this());
    }
  }

  mutable absl::Mutex mutex_;

 private:
  void CutLocked(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (end_.has_value() && discard_) {
      return;  // already ended
    }
    end_ = ReasonError(absl::StatusCode::kResourceExhausted, "SLOW_CONSUMER",
                       absl::StrCat("the reader of this stream is too slow: ", why));
    discard_ = true;
    cut_pending_ = true;
    serving().calls->CountSlowConsumer();
  }

  void PumpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || (writing_ && !discard_)) {
      return;
    }
    if (discard_) {
      DropPending();
      SetUnsent(in_flight_bytes_);
    } else if (const auto bytes = Take(end_.has_value(), &message_); bytes.has_value()) {
      in_flight_bytes_ = *bytes;
      writing_ = true;
      write_began_ = SteadyNow();
      this->StartWrite(&message_);
      return;
    }
    if (end_.has_value()) {
      finished_ = true;
      Ending(*end_);
      this->Finish(ToGrpcStatus(Explain(*end_)));
    }
  }

  StreamPump* const pump_;
  grpc::CallbackServerContext* const call_;   // valid until OnDone
  Response message_ ABSL_GUARDED_BY(mutex_);  // read by gRPC while writing_
  size_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time write_began_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool discard_ ABSL_GUARDED_BY(mutex_) = false;      // pending output has no reader
  bool cut_pending_ ABSL_GUARDED_BY(mutex_) = false;  // the cut must still be passed to the engine
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;     // Finish was called
  bool done_ ABSL_GUARDED_BY(mutex_) = false;         // call_ is invalid
};

}  // namespace sluice::inferd
