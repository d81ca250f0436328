// The sessions' side sockets, and the epoll that the pump sleeps on.
//
// Thread safety: Poller is thread-safe, its Wait() belongs to one thread; SideSockets is thread-compatible,
// the core's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "weightd/engine/session.h"
#include "weightd/store/extent_store.h"

namespace sluice::weightd {

// A thin wrapper of epoll: the pump sleeps on it.
//
// Thread safety: thread-safe; Wait() belongs to one thread.

// Target of an event. `session` 0 is the pump's own bell.
enum class PollKind : uint8_t { kPumpBell = 0, kServerBell = 1, kSideSocket = 2, kProcess = 3 };
struct PollEvent {
  uint64_t session = 0;
  PollKind kind = PollKind::kPumpBell;
};

class Poller {
 public:
  static absl::StatusOr<Poller> Create();

  // Watches a bell edge-triggered: each write to it is reported, and nobody ever reads it.
  absl::Status WatchBell(int fd, PollEvent event);
  absl::Status WatchReadable(int fd, PollEvent event);
  absl::Status RewatchReadable(int fd, PollEvent event, bool also_writable);
  void Unwatch(int fd);

  // Sleeps until an event, or `timeout_ms` (-1: no limit).
  std::vector<PollEvent> Wait(int timeout_ms);

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  absl::Status Control(int operation, int fd, uint32_t events, PollEvent event);

  UniqueFd epoll_;
};

// The sessions' side sockets: attached, written to without blocking and in order, read message by message.
//
// Messages that do not fit into a socket wait in its session, and with them every later completion: a client
// must learn of a segment before it learns of an extent in it.
//
// Thread safety: thread-compatible; the core's lock guards it.
class SideSockets {
 public:
  // All borrowed.
  SideSockets(uint64_t boot_epoch, Poller* poller, const ExtentStore* store, SessionTable* sessions)
      : boot_epoch_(boot_epoch), poller_(poller), store_(store), sessions_(sessions) {}

  // Sends WELCOME and watches the socket and the process behind it. An error before WELCOME was sent leaves
  // the session as it was; after it the session is kActive and must be ended.
  absl::Status Join(Session* session, UniqueFd socket);
  // A message of this type, addressed to the session.
  SideMessage Message(SideType type, const Session& session) const;
  // Sends now, or when the socket has room; `memory` is a segment that the message announces, else null. A
  // broken socket marks the session for its end.
  void Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory);
  // Sends waiting messages.
  void Flush(Session* session);
  // Ends the session's side: the client learns at once that its session is over, and by the socket's close
  // that none of its memory is mapped here any more. No message is sent or received after this.
  void Leave(Session* session);
  // The next message; none: there is no more for now, or the session was marked for close.
  std::optional<SidePacket> Receive(Session* session);

 private:
  const uint64_t boot_epoch_;
  Poller* const poller_;
  const ExtentStore* const store_;
  SessionTable* const sessions_;
};

}  // namespace sluice::weightd
