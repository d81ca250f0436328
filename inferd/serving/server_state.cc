#include "inferd/serving/server_state.h"

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

ServerState::View ServerState::Look() {
  // Called without the lock: the engine takes locks of its own.
  const absl::Status health = engine_->Health();
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
  {
    const MutexLock lock(&mutex_);
    draining_ = true;
  }
  engine_->StartDrain();
}

}  // namespace sluice::inferd
