#include "weightd/engine/session_manager.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

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

absl::Status SessionManager::CheckParams(const SessionParams& params) const {
  if (closed_) {
    return absl::UnavailableError("weightd is draining");
  }
  if (const char* field = AbiMismatch(params.abi)) {
    return absl::FailedPreconditionError(absl::StrCat("session ABI differs in ", field));
  }
  if (!params.layout.valid()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "impossible ring layout: ", params.layout.ring_entries, " ring entries, ", params.layout.list_entries,
        " list entries, ", params.layout.progress_words, " progress words"));
  }
  if (params.packs.empty() || params.packs.size() > kMaxSessionPacks || params.compute_threads > 4096) {
    return absl::InvalidArgumentError(absl::StrCat("a session of ", params.packs.size(), " packs and ",
                                                   params.compute_threads, " compute threads"));
  }
  for (const uint32_t pack : params.packs) {
    const bool twice = std::count(params.packs.begin(), params.packs.end(), pack) > 1;
    if (twice || parts_.packs->source(pack) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("pack ", pack, twice ? " is named twice" : " does not exist"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionHandle> SessionManager::Open(const SessionParams& params) {
  RETURN_IF_ERROR(CheckParams(params));
  Session::Options options;
  uint64_t largest_expert = 0;
  for (const uint32_t pack : params.packs) {
    const ExtentSource* source = parts_.packs->source(pack);
    options.packs.push_back(SessionPackPlan{pack, source, parts_.packs->residency_fd(pack)});
    largest_expert = std::max(largest_expert, source->largest_expert_bytes());
  }
  options.reserved_bytes = 2 * largest_expert * params.compute_threads;
  RETURN_IF_ERROR(parts_.shares->CheckReserve(params, options.reserved_bytes));
  ASSIGN_OR_RETURN(options.quota_bytes, parts_.shares->QuotaOf(params, options.reserved_bytes));
  options.id = parts_.sessions->NewId();
  options.boot_epoch = boot_epoch_;
  options.layout = params.layout;
  options.client_name = params.client_name;
  options.opened_nanos = parts_.clock->NowNanos();
  ASSIGN_OR_RETURN(std::unique_ptr<Session> made, Session::Create(std::move(options)));
  RETURN_IF_ERROR(parts_.poller->WatchBell(made->server_bell(), {made->id(), PollKind::kServerBell}));
  Session* session = parts_.sessions->Add(std::move(made));
  SessionHandle handle;
  handle.session = session->id();
  handle.boot_epoch = boot_epoch_;
  handle.fds = session->fds();
  handle.control_bytes = params.layout.region_bytes();
  handle.reserved_bytes = session->options().reserved_bytes;
  for (size_t i = 0; i < params.packs.size(); ++i) {
    const uint32_t pack = params.packs[i];
    handle.packs.push_back(SessionPack{pack, parts_.packs->source(pack)->extent_count()});
    parts_.tier->AddPins(pack, session->id(), session->pins(i), &session->timeline());
  }
  if (session->options().quota_bytes != 0) {
    parts_.tier->SetQuota(session->id(), session->options().quota_bytes);
  }
  return handle;
}

void SessionManager::EndUnattached(int64_t now) {
  for (const auto& [id, session] : parts_.sessions->all()) {
    if (session->state == SessionState::kOpened && attach_timeout_nanos_ != 0 &&
        session->options().opened_nanos + attach_timeout_nanos_ <= now) {
      parts_.sessions->MarkForClose(id, /*misbehaved=*/true, "its side socket never came");
    }
  }
}

int64_t SessionManager::next_deadline() const {
  int64_t next = 0;
  for (const auto& [id, session] : parts_.sessions->all()) {
    if (session->state == SessionState::kOpened && attach_timeout_nanos_ != 0) {
      const int64_t deadline = session->options().opened_nanos + attach_timeout_nanos_;
      next = next == 0 ? deadline : std::min(next, deadline);
    }
  }
  return next;
}

namespace {

// A session that was refused and has not retried for this long no longer wants the room.
constexpr int64_t kStillAsking = 1'000'000'000;

}  // namespace

bool StalledSessions::Starves(int64_t now) const {
  return std::any_of(starving_.begin(), starving_.end(), [&](const auto& entry) {
    return now - entry.second.since >= stall_nanos_ && now - entry.second.last < kStillAsking;
  });
}

void StalledSessions::EndStalled(int64_t now) {
  const bool starves = Starves(now);
  for (const auto& [id, session] : sessions_->all()) {
    // Signs of life are noted in every round, also while nobody starves.
    const int64_t silent = now - session->LastSign(now);
    // A session that waits for weightd is not stalled.
    if (!starves || silent < stall_nanos_ || session->state == SessionState::kLost ||
        session->outstanding() > 0) {
      continue;
    }
    const uint64_t held = shares_->HeldBy(*session);
    const uint64_t share = shares_->FairShare();
    if (held > share) {
      ++ended_;
      sessions_->MarkForClose(
          id, /*misbehaved=*/true,
          absl::StrCat("no sign of it for ", silent / 1'000'000, " ms while others found no room; it holds ",
                       held, " bytes, its fair share is ", share));
    }
  }
}

}  // namespace sluice::weightd
