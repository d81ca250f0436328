// EngineRequest: cancellation handle of a call's engine request; and the log line at the end of a call. Used
// by all servers.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Cancels only a request that the engine accepted and that has not ended: afterwards its id may belong to
// another call.
class EngineRequest {
 public:
  EngineRequest(EngineApi* engine, std::string id) : engine_(engine), id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  // The engine's thread may have ended the request before the submitting thread gets here.
  void Accepted() {
    State expected = State::kNew;
    if (!state_.compare_exchange_strong(expected, State::kLive) && expected == State::kCancelled) {
      engine_->Cancel(id_).IgnoreError();
    }
  }
  void Ended() { state_.store(State::kEnded); }
  void Cancel() {
    State expected = State::kNew;
    if (state_.compare_exchange_strong(expected, State::kCancelled)) {
      return;  // Accepted() cancels it
    }
    if (expected == State::kLive && state_.compare_exchange_strong(expected, State::kEnded)) {
      engine_->Cancel(id_).IgnoreError();  // NOT_FOUND: it has just ended by itself
    }
  }

 private:
  enum class State : uint8_t { kNew, kLive, kCancelled, kEnded };
  EngineApi* const engine_;
  const std::string id_;
  std::atomic<State> state_{State::kNew};
};

// Writes one log line, without text of prompt or answer. `info` is null unless the call succeeded.
void LogRequestEnd(const ServingContext& context, const std::string& kind, const std::string& request_id,
                   const std::string& client, const FinishInfo* info, const absl::Status& status);

// Adds to `status` what clients rely on: a reason on every failure, a retry hint if a retry can help.
absl::Status Explain(absl::Status status);

}  // namespace sluice::inferd
