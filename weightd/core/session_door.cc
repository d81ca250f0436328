#include "weightd/core/session_door.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::weightd {

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
  if (params.packs.empty() || params.packs.size() > kMaxSessionPacks || params.compute_threads == 0 ||
      params.compute_threads > 4096) {
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

}  // namespace sluice::weightd
