#include "weightd/session/side_sockets.h"

#include <sys/socket.h>

#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/process_fd.h"
#include "common/status.h"

namespace sluice::weightd {

absl::Status SideSockets::Join(Session* session, UniqueFd socket) {
  RETURN_IF_ERROR(SendSideMessage(socket.get(), Message(SideType::kWelcome, *session), session->fds()));
  session->pidfd = ProcessFdOfClient(socket.get());
  session->side_socket = std::move(socket);
  session->state = SessionState::kActive;
  RETURN_IF_ERROR(
      poller_->WatchReadable(session->side_socket.get(), {session->id(), PollKind::kSideSocket}, false));
  if (session->pidfd.valid()) {
    RETURN_IF_ERROR(poller_->WatchReadable(session->pidfd.get(), {session->id(), PollKind::kProcess}, false));
  }
  return absl::OkStatus();
}

SideMessage SideSockets::Message(SideType type, const Session& session) const {
  SideMessage message;
  message.type = type;
  message.session = session.id();
  message.boot_epoch = boot_epoch_;
  return message;
}

void SideSockets::Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory) {
  session->out.push_back(Session::OutMessage{message, std::move(memory)});
  Flush(session);
}

void SideSockets::Flush(Session* session) {
  while (!session->out.empty()) {
    const Session::OutMessage& next = session->out.front();
    const int fd = next.memory == nullptr ? -1 : next.memory->fd.get();
    const absl::Status sent = SendSideMessage(session->side_socket.get(), next.message,
                                              std::span<const int>(&fd, next.memory == nullptr ? 0 : 1));
    if (absl::IsUnavailable(sent)) {
      break;
    }
    if (!sent.ok()) {
      sessions_->MarkForClose(session->id(), /*misbehaved=*/false, std::string(sent.message()));
      return;
    }
    session->out.pop_front();
  }
  const bool blocked = !session->out.empty();
  if (blocked != session->side_writable_wanted) {
    session->side_writable_wanted = blocked;
    const absl::Status watched =
        poller_->RewatchReadable(session->side_socket.get(), {session->id(), PollKind::kSideSocket}, blocked);
    if (!watched.ok()) {
      sessions_->MarkForClose(session->id(), /*misbehaved=*/false, std::string(watched.message()));
    }
  }
  if (!blocked) {
    session->CompleteDelayed(*store_);
  }
}

void SideSockets::Leave(Session* session) {
  poller_->Unwatch(session->side_socket.get());
  shutdown(session->side_socket.get(), SHUT_WR);
  *session->lent = std::move(session->side_socket);
  session->lent.reset();
}

std::optional<SidePacket> SideSockets::Receive(Session* session) {
  absl::StatusOr<SidePacket> packet = ReceiveSideMessage(session->side_socket.get());
  if (packet.ok()) {
    return *std::move(packet);
  }
  if (absl::IsInvalidArgument(packet.status())) {
    sessions_->MarkForClose(session->id(), /*misbehaved=*/true, std::string(packet.status().message()));
  } else if (!absl::IsUnavailable(packet.status())) {
    sessions_->MarkForClose(session->id(), /*misbehaved=*/false, "its side socket has closed");
  }
  return std::nullopt;
}

}  // namespace sluice::weightd
