// The sessions' side sockets: joined, written to without blocking and in order, read message by message.
//
// What a socket has no room for waits in its session, and with it every completion that comes after: a client
// must hear of a segment before it hears of an extent in it.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/ring/shared_memory.h"
#include "common/ring/side_channel.h"
#include "common/ring/unique_fd.h"
#include "weightd/dram/store.h"
#include "weightd/session/poller.h"
#include "weightd/session/session.h"
#include "weightd/session/session_table.h"

namespace sluice {

class SideSockets {
 public:
  // All borrowed.
  SideSockets(uint64_t boot_epoch, Poller* poller, const Store* store, SessionTable* sessions)
      : boot_epoch_(boot_epoch), poller_(poller), store_(store), sessions_(sessions) {}

  // Sends WELCOME and watches the socket and the process behind it. An error before WELCOME was sent leaves
  // the session as it was; after it the session is kActive and must be ended.
  absl::Status Join(Session* session, UniqueFd socket);
  // A message of this type, addressed.
  SideMessage Message(SideType type, const Session& session) const;
  // Now, or when the socket has room; `memory` is a segment that the message announces, else null. A broken
  // socket dooms the session.
  void Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory);
  // Sends what waits.
  void Flush(Session* session);
  // Ends the session's side: the client is told at once that its session is over, and by the socket's close
  // that nothing of its memory is mapped here any more. No message is sent or received behind this.
  void Leave(Session* session);
  // The next message; none: there is no more for now, or the session was doomed.
  std::optional<SidePacket> Receive(Session* session);

 private:
  const uint64_t boot_epoch_;
  Poller* const poller_;
  const Store* const store_;
  SessionTable* const sessions_;
};

}  // namespace sluice
