#include "weightd/core/budget_shares.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::weightd {

absl::Status BudgetShares::SetBudget(uint64_t budget) {
  uint64_t minima = 0;
  for (const auto& [id, session] : sessions_->all()) {
    minima += session->options().reserved_bytes;
  }
  const uint64_t dense = packs_->DenseBytes(sessions_->Packs());
  if (dense + minima > budget) {
    return absl::FailedPreconditionError(
        absl::StrCat("a DRAM budget of ", budget, " bytes cannot hold ", dense + minima, ": dense weights ",
                     dense, ", minima of ", sessions_->size(), " sessions ", minima));
  }
  budget_ = budget;
  return absl::OkStatus();
}

absl::Status BudgetShares::CheckReserve(const SessionParams& params, uint64_t minimum) const {
  std::set<uint32_t> packs = sessions_->Packs();
  packs.insert(params.packs.begin(), params.packs.end());
  uint64_t minima = minimum;
  for (const auto& [id, session] : sessions_->all()) {
    minima += session->options().reserved_bytes;
  }
  const uint64_t dense = packs_->DenseBytes(packs);
  if (dense + minima <= budget_) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "--dram-budget of ", budget_, " bytes cannot hold ", dense + minima, ": dense weights ", dense,
      ", this session's minimum ", minimum, " (twice its largest expert for each of ", params.compute_threads,
      " compute threads), that of ", sessions_->size(), " other sessions ", minima - minimum));
}

absl::StatusOr<uint64_t> BudgetShares::QuotaOf(const SessionParams& params, uint64_t reserved) const {
  const uint64_t asked = params.quota_bytes == 0 ? budget_ : params.quota_bytes;
  const uint64_t allowed = session_quota_ == 0 ? budget_ : session_quota_;
  const uint64_t quota = std::min(asked, allowed);
  if (quota >= budget_) {
    return 0;
  }
  const uint64_t dense = packs_->DenseBytes(std::set<uint32_t>(params.packs.begin(), params.packs.end()));
  if (quota >= dense + reserved) {
    return quota;
  }
  const std::string why =
      absl::StrCat(asked <= allowed ? "the session's quota of " : "--session-quota of ", quota,
                   " bytes cannot hold its dense weights of ", dense, " and its minimum of ", reserved);
  return asked <= allowed ? absl::InvalidArgumentError(why) : absl::ResourceExhaustedError(why);
}

uint64_t BudgetShares::PrefetchHeadroom(uint64_t taken) const {
  for (const auto& [id, session] : sessions_->all()) {
    taken += session->options().reserved_bytes + session->held_bytes();
  }
  taken += packs_->DenseBytes(sessions_->Packs());
  return budget_ - std::min(budget_, taken);
}

uint64_t BudgetShares::FairShare() const {
  const uint64_t dense = std::min(budget_, packs_->DenseBytes(sessions_->Packs()));
  return (budget_ - dense) / std::max<size_t>(1, sessions_->size());
}

uint64_t BudgetShares::HeldBy(const Session& session) const {
  uint64_t held = session.held_bytes();
  uint64_t dense = 0;
  for (const SessionPackPlan& plan : session.options().packs) {
    held += store_->HeldBy(plan.pack, session.id()).bytes;
    dense += plan.source->dense_bytes();
  }
  return held - std::min(held, dense);
}

}  // namespace sluice::weightd
