// ServerState: data of GetServerInfo: constants of this process, and its phase. gRPC-free.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

  // `engine` is borrowed. `info` may lack the fields that are known only after the engine's creation.
  ServerState(EngineApi* engine, ServerInfo info) : engine_(engine), info_(std::move(info)) {}

  void SetBackend(const std::string& isa, const std::string& backend, const std::string& weight_transport)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ServerInfo info() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Queries the engine.
  View Look() ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new requests from now on.
  void StartDrain() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  EngineApi* const engine_;
  mutable Mutex mutex_;
  ServerInfo info_ ABSL_GUARDED_BY(mutex_);
  bool has_served_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// EngineGate: EngineApi for clients: closed while the server starts, then forwards to the engine.
//
// The sockets open before the engine is ready, so that a launcher can follow the start; calls that need an
// engine are refused with UNAVAILABLE (STARTING) until Open(). gRPC-free.
//
// Thread safety: thread-safe.

class EngineGate final : public EngineApi {
 public:
  // Sets the current stage of the start, for Health() and for refusals.
  void SetProgress(const std::string& what) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forwards calls to `engine`, which is borrowed and must outlive the gate's use.
  void Open(EngineApi* engine) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) override;
  absl::Status Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) override;
  absl::Status Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) override;
  absl::Status Cancel(const std::string& request_id) override;
  EngineStats Stats() const override;
  std::vector<LayerSparsity> Sparsity() const override;
  std::vector<LayerStats> Layers() const override;
  absl::Status Health() const override;
  void StartDrain() override;
  absl::Status CheckQueueSpace(const std::string& client) override;
  void SetQueueLimits(const QueueLimits& limits) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<EngineApi*> Engine() const ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  EngineApi* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string progress_ ABSL_GUARDED_BY(mutex_) = "starting";
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<QueueLimits> queue_limits_ ABSL_GUARDED_BY(mutex_);  // set before the engine was there
};

// SelfTest: generates one token, the condition for "ready". gRPC-free.
//
// Thread safety: safe to call from any thread; it blocks.

// Generates one token for the one-token prompt `token`. Returns the engine's error, or DEADLINE_EXCEEDED
// after `limit`.
absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit);

}  // namespace sluice::inferd
