// Client: inferd over gRPC, as the commands need it.
//
// Thread safety: thread-safe; calls from several threads run at once. Every call ends with CANCELLED when the
// Interrupt comes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/interrupt.h"
#include "sluice/inference/v1/admin.grpc.pb.h"
#include "sluice/inference/v1/evaluation.grpc.pb.h"
#include "sluice/inference/v1/inference.grpc.pb.h"
#include "sluice/inference/v1/model.grpc.pb.h"

namespace sluice::cli {

namespace api = ::sluice::inference::v1;

// Ends a call from another thread. Thread-safe.
class CallStopper {
 public:
  // Returns true if a call was running and not yet stopped.
  bool Stop() LOCKS_EXCLUDED(mutex_);

 private:
  friend class Client;
  void Began(std::function<void()> stop) LOCKS_EXCLUDED(mutex_);
  void Ended() LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::function<void()> stop_ GUARDED_BY(mutex_);  // null: no call runs, or it was stopped
};

class Client {
 public:
  // Addresses as gRPC takes them ("unix:/run/x/inferd.sock", "127.0.0.1:7070"). `admin_address` empty: there
  // is no way to the admin service. Connects when the first call is made.
  Client(const std::string& address, const std::string& admin_address, Interrupt* interrupt);
  ~Client();

  const std::string& address() const { return address_; }
  bool has_admin() const { return admin_ != nullptr; }

  // OK when a token can be made, waiting for that up to `patience`; UNAVAILABLE when nobody answers or
  // it still cannot.
  absl::Status CheckServing(absl::Duration patience);

  absl::StatusOr<api::Model> GetModel();
  absl::StatusOr<api::GetServerInfoResponse> GetServerInfo();
  absl::StatusOr<api::GetStatsResponse> GetStats();

  // Hands every event to `handle`, on this thread, until the stream ends; a status that is not OK from
  // `handle` cancels the call and is returned.
  absl::Status GenerateStream(const api::GenerateStreamRequest& request,
                              absl::FunctionRef<absl::Status(const api::GenerateStreamResponse&)> handle);
  // `stopper` can end it: CANCELLED.
  absl::Status ChatStream(const api::ChatStreamRequest& request, CallStopper* stopper,
                          absl::FunctionRef<absl::Status(const api::ChatStreamResponse&)> handle);
  absl::Status Score(const api::ScoreRequest& request,
                     absl::FunctionRef<absl::Status(const api::ScoreResponse&)> handle);
  // FAILED_PRECONDITION without an admin socket.
  absl::Status Calibrate(const api::CalibrateRequest& request,
                         absl::FunctionRef<absl::Status(const api::CalibrateResponse&)> handle);

 private:
  absl::Status CheckAdmin() const;

  struct Health;
  const std::string address_;
  Interrupt* const interrupt_;
  std::unique_ptr<api::InferenceService::Stub> inference_;
  std::unique_ptr<api::ModelService::Stub> model_;
  std::unique_ptr<api::EvaluationService::Stub> evaluation_;
  std::unique_ptr<api::AdminService::Stub> admin_;
  std::unique_ptr<Health> health_;
};

}  // namespace sluice::cli
