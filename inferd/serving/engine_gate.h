// EngineGate: EngineApi for clients: closed while the server starts, then forwards to the engine.
//
// The sockets open before the engine is ready, so that a launcher can follow the start; calls that need an
// engine are refused with UNAVAILABLE (STARTING) until Open(). gRPC-free.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

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

}  // namespace sluice::inferd
