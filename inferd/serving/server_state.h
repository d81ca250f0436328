// ServerState: the engine once it is ready, the phase of the process, and the data of GetServerInfo.
// gRPC-free.
//
// The sockets open before the engine is ready, so that a launcher can follow the start; calls that need an
// engine are refused until SetEngine().
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

struct ReportedOption {
  std::string name;
  std::string value;
  bool is_set = false;
};

struct ServerInfo {
  std::string version;
  std::vector<std::string> libraries;
  uint32_t pid = 0;
  uint32_t uid = 0;
  absl::Time start_time;
  std::string model_id;
  std::string pack_path;
  std::string isa;
  std::string backend;
  std::string weight_transport;
  std::vector<ReportedOption> options;
};

class ServerState {
 public:
  enum class Phase : uint8_t { kStarting, kServing, kUnavailable, kDraining };
  struct View {
    Phase phase = Phase::kStarting;
    std::string detail;  // reason why no token can be made; empty in kServing
  };

  // `info` may lack the fields that are known only after the engine's creation.
  explicit ServerState(ServerInfo info) : info_(std::move(info)) {}

  void SetBackend(const std::string& isa, const std::string& backend, const std::string& weight_transport)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ServerInfo info() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets the current stage of the start, for Look() and for refusals.
  void SetProgress(const std::string& what) ABSL_LOCKS_EXCLUDED(mutex_);
  // Admits calls to `engine`, which is borrowed and must outlive them.
  void SetEngine(EngineApi* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // The engine; it refuses new requests itself once it drains. Before SetEngine(): UNAVAILABLE (STARTING with
  // the stage, DRAINING).
  absl::StatusOr<EngineApi*> Engine() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The engine's; before SetEngine() the status of Engine(), and zeros.
  absl::Status Health() const;
  EngineStats Stats() const;
  // Kept until SetEngine() if there is no engine yet.
  void SetQueueLimits(const QueueLimits& limits) ABSL_LOCKS_EXCLUDED(mutex_);

  // Queries the engine.
  View Look() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new requests from now on.
  void StartDrain() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  ServerInfo info_ ABSL_GUARDED_BY(mutex_);
  EngineApi* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;  // never null again once set
  std::string progress_ ABSL_GUARDED_BY(mutex_) = "starting";
  std::optional<QueueLimits> queue_limits_ ABSL_GUARDED_BY(mutex_);  // set before the engine existed
  bool has_served_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// SelfTest: generates one token, the condition for "ready". gRPC-free.
//
// Thread safety: safe to call from any thread; it blocks.

// Generates one token for the one-token prompt `token`. Returns the engine's error, or DEADLINE_EXCEEDED
// after `limit`.
absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit);

}  // namespace sluice::inferd
