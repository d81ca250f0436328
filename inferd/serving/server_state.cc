#include "inferd/serving/server_state.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::inferd {

void ServerState::SetBackend(const std::string& isa, const std::string& backend,
                             const std::string& weight_transport) {
  const MutexLock lock(&mutex_);
  info_.isa = isa;
  info_.backend = backend;
  info_.weight_transport = weight_transport;
}

ServerInfo ServerState::info() const {
  const MutexLock lock(&mutex_);
  return info_;
}

void ServerState::SetProgress(const std::string& what) {
  const MutexLock lock(&mutex_);
  progress_ = what;
}

void ServerState::SetEngine(EngineApi* engine) {
  // Under the lock, so that no concurrent change is lost or repeated.
  const MutexLock lock(&mutex_);
  engine_ = engine;
  if (queue_limits_.has_value()) {
    engine_->SetQueueLimits(*queue_limits_);
  }
  if (draining_) {
    engine_->StartDrain();
  }
}

absl::StatusOr<EngineApi*> ServerState::Engine() const {
  const MutexLock lock(&mutex_);
  if (engine_ != nullptr) {
    return engine_;
  }
  // A server that is drained during its start will never serve.
  return draining_ ? ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is ending")
                   : ReasonError(absl::StatusCode::kUnavailable, "STARTING",
                                 absl::StrCat("the server is starting: ", progress_));
}

absl::Status ServerState::Health() const {
  ASSIGN_OR_RETURN(EngineApi* const engine, Engine());
  return engine->Health();
}

EngineStats ServerState::Stats() const {
  const absl::StatusOr<EngineApi*> engine = Engine();
  return engine.ok() ? (*engine)->Stats() : EngineStats();
}

void ServerState::SetQueueLimits(const QueueLimits& limits) {
  const MutexLock lock(&mutex_);
  if (engine_ != nullptr) {
    engine_->SetQueueLimits(limits);
  } else {
    queue_limits_ = limits;
  }
}

ServerState::View ServerState::Look() {
  const absl::Status health = Health();  // without the lock: the engine takes locks of its own
  const MutexLock lock(&mutex_);
  if (draining_) {
    return {Phase::kDraining, "the server is ending"};
  }
  if (health.ok()) {
    has_served_ = true;
    return {Phase::kServing, ""};
  }
  // An engine that served before and does not now has lost weightd; before that it is still starting.
  return {has_served_ ? Phase::kUnavailable : Phase::kStarting, std::string(health.message())};
}

void ServerState::StartDrain() {
  const MutexLock lock(&mutex_);
  draining_ = true;
  if (engine_ != nullptr) {
    engine_->StartDrain();
  }
}

namespace {

// The sink is shared with the engine, which may end the request after the test's timeout.
class TestSink final : public RequestSink {
 public:
  void OnStarted(const Usage&, double) override {}
  void OnTokens(absl::Span<const TokenOut>, std::string_view) override {}
  void OnFinished(const FinishInfo& info) override {
    if (info.usage.completion_tokens != 1) {
      status_ =
          absl::InternalError(absl::StrCat("made ", info.usage.completion_tokens, " tokens instead of 1"));
    }
    done_.Notify();
  }
  void OnError(const absl::Status& status) override {
    status_ = status;
    done_.Notify();
  }
  bool Wait(absl::Duration limit) { return done_.WaitForNotificationWithTimeout(limit); }
  const absl::Status& status() const { return status_; }  // REQUIRES: Wait() was true

 private:
  absl::Status status_;  // written before, read after done_
  absl::Notification done_;
};

}  // namespace

absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit) {
  GenerateSpec spec;
  spec.request_id = "self-test";
  spec.client = "self-test";
  spec.prompt = {token};
  spec.stopping.max_tokens = 1;
  spec.stopping.ignore_eos = true;
  spec.deadline = SteadyNow() + limit;
  auto sink = std::make_shared<TestSink>();
  RETURN_IF_ERROR(Annotate(engine->Generate(std::move(spec), sink), "self-test"));
  // The engine itself enforces the deadline; the margin is for an engine that does not.
  if (!sink->Wait(limit + absl::Seconds(5))) {
    engine->Cancel("self-test").IgnoreError();
    return absl::DeadlineExceededError("self-test: the engine does not answer");
  }
  return Annotate(sink->status(), "self-test");
}

}  // namespace sluice::inferd
