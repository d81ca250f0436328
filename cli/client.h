// Client: inferd's gRPC API in the form that the commands need.
//
// Thread safety: thread-safe; calls from several threads run concurrently. Every call ends with CANCELLED
// when the Interrupt is requested.
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

// CallStopper: ends a call from another thread. Thread-safe.
class CallStopper {
 public:
  // Returns true if a call was running and not yet stopped.
  bool Stop() LOCKS_EXCLUDED(mutex_);

 private:
  friend class Client;
  void Began(std::function<void()> stop) LOCKS_EXCLUDED(mutex_);
  void Ended() LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::function<void()> stop_ GUARDED_BY(mutex_);  // null: no call runs, or it was already stopped
};

class Client {
 public:
  // Addresses in gRPC's form ("unix:/run/x/inferd.sock", "127.0.0.1:7070"). `admin_address` empty: no access
  // to the admin service. The connection is made by the first call.
  Client(const std::string& address, const std::string& admin_address, Interrupt* interrupt);
  ~Client();

  // Names the model of every request, for a server of several; its id or name. REQUIRES: no call is running.
  void UseModel(const std::string& model) { named_ = model; }

  const std::string& address() const { return address_; }
  bool has_admin() const { return admin_ != nullptr; }

  // Waits up to `patience` until the server can make tokens. UNAVAILABLE if nobody answers, or if it still
  // cannot.
  absl::Status CheckServing(absl::Duration patience);

  absl::StatusOr<api::Model> GetModel();
  absl::StatusOr<api::ListModelsResponse> ListModels();
  absl::StatusOr<api::GetServerInfoResponse> GetServerInfo();
  absl::StatusOr<api::GetStatsResponse> GetStats();

  // Calls `handle` with each event, on this thread, until the stream ends. An error from `handle` cancels the
  // call and is returned.
  absl::Status GenerateStream(api::GenerateStreamRequest request,
                              absl::FunctionRef<absl::Status(const api::GenerateStreamResponse&)> handle);
  // CANCELLED if `stopper` ends the call.
  absl::Status ChatStream(api::ChatStreamRequest request, CallStopper* stopper,
                          absl::FunctionRef<absl::Status(const api::ChatStreamResponse&)> handle);
  absl::Status Score(api::ScoreRequest request,
                     absl::FunctionRef<absl::Status(const api::ScoreResponse&)> handle);
  // FAILED_PRECONDITION without an admin address.
  absl::Status Calibrate(const api::CalibrateRequest& request,
                         absl::FunctionRef<absl::Status(const api::CalibrateResponse&)> handle);

 private:
  absl::Status CheckAdmin() const;

  struct Health;
  const std::string address_;
  Interrupt* const interrupt_;
  std::string named_;  // model of the requests; empty: the only one
  std::unique_ptr<api::InferenceService::Stub> inference_;
  std::unique_ptr<api::ModelService::Stub> model_;
  std::unique_ptr<api::EvaluationService::Stub> evaluation_;
  std::unique_ptr<api::AdminService::Stub> admin_;
  std::unique_ptr<Health> health_;
};

}  // namespace sluice::cli
