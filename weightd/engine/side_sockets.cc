#include "weightd/engine/side_sockets.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/protocol/shared_memory.h"

namespace sluice::weightd {
namespace {

uint64_t Encode(PollEvent event) { return event.session << 2 | static_cast<uint64_t>(event.kind); }
PollEvent Decode(uint64_t data) { return PollEvent{data >> 2, static_cast<PollKind>(data & 3)}; }

}  // namespace

absl::StatusOr<Poller> Poller::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return ErrnoToStatus(errno, "epoll");
  }
  return Poller(std::move(epoll));
}

absl::Status Poller::Control(int operation, int fd, uint32_t events, PollEvent event) {
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = Encode(event);
  if (epoll_ctl(epoll_.get(), operation, fd, &wanted) != 0) {
    return ErrnoToStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

absl::Status Poller::WatchBell(int fd, PollEvent event) {
  return Control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, event);
}

absl::Status Poller::WatchReadable(int fd, PollEvent event) {
  return Control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, event);
}

absl::Status Poller::RewatchReadable(int fd, PollEvent event, bool also_writable) {
  return Control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | (also_writable ? EPOLLOUT : 0u), event);
}

void Poller::Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<PollEvent> Poller::Wait(int timeout_ms) {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout_ms);
  std::vector<PollEvent> events;
  for (int i = 0; i < count; ++i) {
    events.push_back(Decode(ready[static_cast<size_t>(i)].data.u64));
  }
  return events;
}

absl::Status SideSockets::Join(Session* session, UniqueFd socket) {
  RETURN_IF_ERROR(SendSideMessage(socket.get(), Message(SideType::kWelcome, *session), session->fds()));
  session->pidfd = ProcessFdOfClient(socket.get());
  session->side_socket = std::move(socket);
  session->state = SessionState::kActive;
  RETURN_IF_ERROR(poller_->WatchReadable(session->side_socket.get(), {session->id(), PollKind::kSideSocket}));
  if (session->pidfd.valid()) {
    RETURN_IF_ERROR(poller_->WatchReadable(session->pidfd.get(), {session->id(), PollKind::kProcess}));
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
