#include "inferd/engine/step_taps.h"

#include "common/status.h"

namespace sluice {

absl::Status StepTaps::BeforeChoice(const RouterTap& tap) {
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeChoice(tap);
}

bool StepTaps::MayPass(uint32_t layer) const {
  return trace_ == nullptr && (prefetcher_ == nullptr || prefetcher_->MayPass(layer));
}

absl::Status StepTaps::AfterRouter(const RouterTap& tap) {
  moved_on_();
  if (trace_ != nullptr) {
    RETURN_IF_ERROR(trace_->AfterRouter(tap));
  }
  const OneBell bell(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterRouter(tap);
}

absl::Status StepTaps::BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) {
  const OneBell bell(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->BeforeExperts(layer, args);
}

absl::Status StepTaps::AfterLayer(const LayerEnd& end) {
  const OneBell bell(client_);
  return prefetcher_ == nullptr ? absl::OkStatus() : prefetcher_->AfterLayer(end);
}

bool StepTaps::WantsLookAhead(uint32_t layer) const {
  return prefetcher_ != nullptr && prefetcher_->WantsLookAhead(layer);
}

absl::Status StepTaps::LookAhead(const RouterTap& tap) {
  const OneBell bell(client_);
  return prefetcher_->LookAhead(tap);
}

bool StepTaps::WantsNextTokens() { return prefetcher_ != nullptr && prefetcher_->WantsNextTokens(); }

absl::Status StepTaps::NextTokens(const RouterTap& tap) {
  const OneBell bell(client_);
  return prefetcher_->NextTokens(tap);
}

}  // namespace sluice
