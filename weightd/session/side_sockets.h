// The sessions' side sockets: attached, written to without blocking and in order, read message by message.
//
// Messages that do not fit into a socket wait in its session, and with them every later completion: a client
// must learn of a segment before it learns of an extent in it.
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

namespace sluice::weightd {

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
  // The next message; none: there is no more for now, or the session was doomed for its end.
  std::optional<SidePacket> Receive(Session* session);

 private:
  const uint64_t boot_epoch_;
  Poller* const poller_;
  const ExtentStore* const store_;
  SessionTable* const sessions_;
};

}  // namespace sluice::weightd
