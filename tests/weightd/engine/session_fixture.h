// Fixture for tests of sessions: a session that holds the memory, and the ends of side sockets.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>

#include "common/protocol/side_channel.h"
#include "tests/weightd/engine/core_fixture.h"

namespace sluice::weightd {

class SessionTest : public CoreTest {
 protected:
  // A session with three leases, whose expert is the only thing that fits.
  void HoldAll(LocalClient* client) {
    client->Submit(LocalClient::FillExpert(1, 0, 0));
    client->Submit(LocalClient::FillExpert(2, 0, 1));
    Pump();
    reader_.CompleteAll();
    Pump();
    uint64_t place;
    for (uint32_t i = 0; i < 6; ++i) {
      ASSERT_TRUE(client->Lease(ExpertExtentId(0, 0) + i, &place));
    }
    while (Next(client)) {
    }
  }
  // The outcome of another expert's request by a second session.
  absl::StatusCode Ask(LocalClient* client, uint64_t id) {
    client->Submit(LocalClient::FillExpert(id, 2, 2));
    Pump();
    reader_.CompleteAll();
    Pump();
    return CodeOf(Next(client));
  }
  // The two ends of a side socket; the session gets the first.
  std::pair<UniqueFd, UniqueFd> SocketPair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  static SidePacket Receive(int socket) {
    auto packet = ReceiveSideMessage(socket);
    EXPECT_TRUE(packet.ok()) << packet.status();
    return packet.ok() ? *std::move(packet) : SidePacket{};
  }
};

}  // namespace sluice::weightd
