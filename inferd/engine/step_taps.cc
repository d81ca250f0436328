#include "inferd/engine/step_taps.h"

#include "common/status.h"

namespace sluice::inferd {

absl::Status StepHooks::BeforeChoice(const RouterState& state) {
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeChoice(state);
}

bool StepHooks::CanDeferRouting(uint32_t layer) const {
  return trace_ == nullptr && (prefetcher_ == nullptr || prefetcher_->CanDeferRouting(layer));
}

absl::Status StepHooks::AfterRouter(const RouterState& state) {
  moved_on_();
  if (trace_ != nullptr) {
    RETURN_IF_ERROR(trace_->AfterRouter(state));
  }
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterRouter(state);
}

absl::Status StepHooks::BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeExperts(layer, args);
}

absl::Status StepHooks::AfterLayer(const LayerEnd& end) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterLayer(end);
}

bool StepHooks::WantsLookAhead(uint32_t layer) const {
  return prefetcher_ != nullptr && prefetcher_->WantsLookAhead(layer);
}

absl::Status StepHooks::LookAhead(const RouterState& state) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_->LookAhead(state);
}

bool StepHooks::WantsNextTokens() { return prefetcher_ != nullptr && prefetcher_->WantsNextTokens(); }

absl::Status StepHooks::NextTokens(const RouterState& state) {
  const BatchSubmit batch_submit(client_);
  return prefetcher_->NextTokens(state);
}

}  // namespace sluice::inferd
