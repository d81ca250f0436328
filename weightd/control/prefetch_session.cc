#include "weightd/control/prefetch_session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/ring/side_channel.h"
#include "common/status.h"

namespace sluice::weightd {

absl::StatusOr<std::unique_ptr<PrefetchSession>> PrefetchSession::Open(WeightStore* store, uint32_t pack,
                                                                       const std::string& name) {
  SessionParams params;
  params.packs = {pack};
  params.client_name = name;
  ASSIGN_OR_RETURN(const SessionHandle handle, store->Control(&StoreCore::OpenSession, params));
  std::unique_ptr<PrefetchSession> session(new PrefetchSession(store, handle.session));
  session->server_bell_ = handle.fds[WelcomeFds::kServerBell];
  session->client_bell_ = handle.fds[WelcomeFds::kClientBell];
  ASSIGN_OR_RETURN(session->control_, MapSharedMemory(handle.fds[WelcomeFds::kControl], handle.control_bytes,
                                                      /*writable=*/true, /*populate=*/false));
  ASSIGN_OR_RETURN(const ControlView view, OpenControl(session->control_.data(), session->control_.bytes()));
  session->submissions_.emplace(view);
  session->completions_.emplace(view);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "socket pair");
  }
  session->side_.reset(ends[0]);
  RETURN_IF_ERROR(store->Control(&StoreCore::AttachSideSocket, handle.session, UniqueFd(ends[1])));
  return session;
}

PrefetchSession::~PrefetchSession() {
  store_->Control(&StoreCore::CloseSession, session_).IgnoreError();  // NOT_FOUND: the store ended it before
}

bool PrefetchSession::Request(uint32_t extent, RequestClass request_class) {
  SubmissionEntry entry{};
  entry.id = next_id_;
  entry.opcode = Opcode::kFillExtent;
  entry.request_class = request_class;
  entry.extent = extent;
  entry.slab = kNoSlab;
  entry.progress = kNoProgress;
  if (submissions_->Push(entry) != RingResult::kOk) {
    return false;
  }
  ++next_id_;
  ++outstanding_;
  if (submissions_->ClaimServerWake()) {
    eventfd_write(server_bell_, 1);
  }
  return true;
}

absl::StatusOr<std::optional<CompletionEntry>> PrefetchSession::Take() {
  AnswerSide();
  CompletionEntry entry;
  const RingResult result = completions_->Peek(&entry);
  if (result == RingResult::kOk) {
    completions_->Advance();
    --outstanding_;
    return entry;
  }
  if (ended_ || result == RingResult::kCorrupt) {
    return absl::FailedPreconditionError("the session was ended");
  }
  return std::nullopt;
}

void PrefetchSession::Sleep(int event) {
  if (!completions_->BeginWait()) {
    return;
  }
  pollfd polled[3] = {{client_bell_, POLLIN, 0}, {side_.get(), POLLIN, 0}, {event, POLLIN, 0}};
  poll(polled, 3, -1);
  completions_->EndWait();
  char bytes[64];
  while ((polled[0].revents & POLLIN) != 0 && read(client_bell_, bytes, sizeof(bytes)) == sizeof(bytes)) {
  }
}

// This session maps nothing, so a retired segment is unmapped already.
void PrefetchSession::AnswerSide() {
  while (!ended_) {
    const auto packet = ReceiveSideMessage(side_.get());
    if (absl::IsUnavailable(packet.status())) {
      return;
    }
    ended_ = !packet.ok();
    if (packet.ok() && packet->message.type == SideType::kSegmentRetired) {
      SideMessage answer;
      answer.type = SideType::kSegmentUnmapped;
      answer.session = session_;
      answer.segment = packet->message.segment;
      ended_ = !SendSideMessage(side_.get(), answer).ok();
    }
  }
}

}  // namespace sluice::weightd
