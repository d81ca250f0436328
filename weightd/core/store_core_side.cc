// StoreCore's side sockets: segments announced and taken back, slabs offered, connections that end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weightd/core/store_core.h"

namespace sluice {

SideMessage StoreCore::Message(SideType type, const Session& session) const {
  SideMessage message;
  message.type = type;
  message.session = session.id();
  message.boot_epoch = options_.boot_epoch;
  return message;
}

void StoreCore::Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory) {
  session->out.push_back(Session::OutMessage{message, std::move(memory)});
  Flush(session);
}

void StoreCore::Flush(Session* session) {
  while (!session->out.empty()) {
    const Session::OutMessage& next = session->out.front();
    int fd = next.memory == nullptr ? -1 : next.memory->fd.get();
    const absl::Status sent = SendSideMessage(session->side_socket.get(), next.message,
                                              std::span<const int>(&fd, next.memory == nullptr ? 0 : 1));
    if (absl::IsUnavailable(sent)) {
      break;
    }
    if (!sent.ok()) {
      Doom(session->id(), /*misbehaved=*/false, std::string(sent.message()));
      return;
    }
    session->out.pop_front();
  }
  const bool blocked = !session->out.empty();
  if (blocked != session->side_writable_wanted) {
    session->side_writable_wanted = blocked;
    const absl::Status watched = environment_.poller->RewatchReadable(
        session->side_socket.get(), {session->id(), PollKind::kSideSocket}, blocked);
    if (!watched.ok()) {
      Doom(session->id(), /*misbehaved=*/false, std::string(watched.message()));
    }
  }
  if (!blocked) {
    FlushDelayed(session);
  }
}

void StoreCore::FlushDelayed(Session* session) {
  while (!session->delayed.empty()) {
    Session::DelayedCompletion next = std::move(session->delayed.front());
    session->delayed.pop_front();
    session->Complete(next.entry, std::move(next.held), tier_.store());
  }
}

void StoreCore::HandleEvent(PollEvent event) {
  Session* session = Find(event.session);
  if (session == nullptr) {
    return;
  }
  if (event.kind == PollKind::kProcess) {
    Log(LogSeverity::kInfo, absl::StrCat("session ", event.session, ": its process has exited"));
    End(event.session);
  } else if (event.kind == PollKind::kSideSocket && session->side_socket.valid()) {
    Flush(session);
    OnSideReadable(session);
    EndDoomed();
  }
}

void StoreCore::OnSideReadable(Session* session) {
  while (true) {
    absl::StatusOr<SidePacket> packet = ReceiveSideMessage(session->side_socket.get());
    if (absl::IsUnavailable(packet.status())) {
      return;
    }
    if (absl::IsInvalidArgument(packet.status())) {
      Doom(session->id(), /*misbehaved=*/true, std::string(packet.status().message()));
      return;
    }
    if (!packet.ok()) {
      Doom(session->id(), /*misbehaved=*/false, "its side socket has closed");
      return;
    }
    if (packet->message.type == SideType::kSlabOffered && packet->fds.size() == 1) {
      OnSlabOffered(session, *std::move(packet));
      continue;
    }
    if (packet->message.type != SideType::kSegmentUnmapped || packet->message.fd_count != 0) {
      Doom(session->id(), /*misbehaved=*/true, "unexpected side message");
      return;
    }
    OnUnmapped(session->id(), packet->message.segment);
  }
}

void StoreCore::OnSegmentAdded(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory) {
  if (environment_.prefault) {
    environment_.prefault(memory);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->side_socket.valid()) {
      SideMessage message = Message(SideType::kSegmentAdded, *session);
      message.segment = segment;
      message.bytes = memory->map.bytes();
      Send(session.get(), message, memory);
    }
  }
}

void StoreCore::OnSegmentRetired(uint32_t segment) {
  std::set<uint64_t> waiting;
  for (const auto& [id, session] : sessions_) {
    const auto unsent =
        std::find_if(session->out.begin(), session->out.end(), [segment](const Session::OutMessage& out) {
          return out.message.type == SideType::kSegmentAdded && out.message.segment == segment;
        });
    if (unsent != session->out.end()) {
      session->out.erase(unsent);  // the client never hears of it
      continue;
    }
    if (session->side_socket.valid()) {
      SideMessage message = Message(SideType::kSegmentRetired, *session);
      message.segment = segment;
      Send(session.get(), message, nullptr);
    }
    // A lost session's process may still have it mapped.
    if (session->side_socket.valid() || session->pidfd.valid()) {
      waiting.insert(id);
    }
  }
  if (waiting.empty()) {
    tier_.DropSegment(segment);
  } else {
    const uint64_t bytes = tier_.arena().memory(segment)->map.bytes();
    retiring_[segment] = Retiring{std::move(waiting), bytes, environment_.clock->NowNanos()};
  }
}

void StoreCore::NoteSlowSessions(int64_t now) {
  uint64_t slow = 0;
  uint64_t lost = 0;
  for (const auto& [segment, retiring] : retiring_) {
    slow += now - retiring.since_nanos >= options_.slow_unmap_nanos ? retiring.bytes : 0;
    lost += now - retiring.since_nanos >= options_.fetcher.retire_wait_nanos ? retiring.bytes : 0;
  }
  if (slow != slow_bytes_ || lost != lost_bytes_) {
    slow_bytes_ = slow;
    lost_bytes_ = lost;
    tier_.SetSlow(slow, lost);
    fetcher_.OnRetired();
  }
}

void StoreCore::OnUnmapped(uint64_t session, uint32_t segment) {
  auto found = retiring_.find(segment);
  if (found == retiring_.end() || found->second.sessions.erase(session) == 0 ||
      !found->second.sessions.empty()) {
    return;
  }
  retiring_.erase(found);
  tier_.DropSegment(segment);
  NoteSlowSessions(environment_.clock->NowNanos());
  fetcher_.OnRetired();
}

}  // namespace sluice
