#include "inferd/serving/engine_gate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_detail.h"
#include "common/status.h"

namespace sluice::inferd {

void EngineGate::SetProgress(const std::string& what) {
  const MutexLock lock(&mutex_);
  progress_ = what;
}

void EngineGate::Open(EngineApi* engine) {
  // Applies the calls made while there was no engine, under the lock, so that no concurrent call is lost or
  // repeated.
  const MutexLock lock(&mutex_);
  engine_ = engine;
  if (queue_limits_.has_value()) {
    engine_->SetQueueLimits(*queue_limits_);
  }
  if (draining_) {
    engine_->StartDrain();
  }
}

absl::StatusOr<EngineApi*> EngineGate::Engine() const {
  const MutexLock lock(&mutex_);
  // Draining precedes starting: a server that is drained during its start will never serve.
  if (draining_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is ending");
  }
  if (engine_ == nullptr) {
    return ReasonError(absl::StatusCode::kUnavailable, "STARTING",
                       absl::StrCat("the server is starting: ", progress_));
  }
  return engine_;
}

absl::Status EngineGate::Generate(GenerateSpec spec, std::shared_ptr<RequestSink> sink) {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->Generate(std::move(spec), std::move(sink));
}

absl::Status EngineGate::Score(ScoreSpec spec, std::shared_ptr<ScoreSink> sink) {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->Score(std::move(spec), std::move(sink));
}

absl::Status EngineGate::Calibrate(CalibrationSpec spec, std::shared_ptr<CalibrationSink> sink) {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->Calibrate(std::move(spec), std::move(sink));
}

// Not by Engine(): a request accepted before the drain can still be cancelled.
absl::Status EngineGate::Cancel(const std::string& request_id) {
  EngineApi* engine = nullptr;
  {
    const MutexLock lock(&mutex_);
    engine = engine_;
  }
  return engine != nullptr ? engine->Cancel(request_id)
                           : ReasonError(absl::StatusCode::kNotFound, "REQUEST_NOT_FOUND",
                                         absl::StrCat("no request ", request_id, " lives"));
}

EngineStats EngineGate::Stats() const {
  EngineApi* engine = nullptr;
  {
    const MutexLock lock(&mutex_);
    engine = engine_;
  }
  return engine != nullptr ? engine->Stats() : EngineStats();
}

std::vector<LayerSparsity> EngineGate::Sparsity() const {
  const absl::StatusOr<EngineApi*> engine = Engine();
  return engine.ok() ? (*engine)->Sparsity() : std::vector<LayerSparsity>();
}

std::vector<LayerStats> EngineGate::Layers() const {
  const absl::StatusOr<EngineApi*> engine = Engine();
  return engine.ok() ? (*engine)->Layers() : std::vector<LayerStats>();
}

absl::Status EngineGate::Health() const {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->Health();
}

absl::Status EngineGate::CheckQueueSpace(const std::string& client) {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->CheckQueueSpace(client);
}

void EngineGate::SetQueueLimits(const QueueLimits& limits) {
  const MutexLock lock(&mutex_);
  if (engine_ != nullptr) {
    engine_->SetQueueLimits(limits);
  } else {
    queue_limits_ = limits;
  }
}

void EngineGate::StartDrain() {
  const MutexLock lock(&mutex_);
  draining_ = true;
  if (engine_ != nullptr) {
    engine_->StartDrain();
  }
}

}  // namespace sluice::inferd
