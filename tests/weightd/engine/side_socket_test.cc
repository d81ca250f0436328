// Messages on a session's side socket: regions, new and retired segments, and the end of its process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>

#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "tests/support/temp_dir.h"
#include "tests/weightd/engine/session_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::SizeIs;

class SideSocketTest : public SessionTest {};

TEST_F(SideSocketTest, WelcomeBringsTheRegionsAndTheSegmentsFollow) {
  Start(8 * kExpert);
  LocalClient other = Client(OpenSession());
  HoldAll(&other);
  const uint64_t session = OpenSession();
  auto [server, client] = SocketPair();
  ASSERT_TRUE(core_->AttachSideSocket(session, std::move(server)).ok());
  const SidePacket welcome = Receive(client.get());
  EXPECT_EQ(welcome.message.type, SideType::kWelcome);
  EXPECT_EQ(welcome.message.session, session);
  EXPECT_EQ(welcome.message.boot_epoch, 77u);
  ASSERT_EQ(welcome.fds.size(), WelcomeFds::Count(1));
  EXPECT_EQ(ProcessOf(welcome.fds[WelcomeFds::kProcess].get()), getpid());
  const ControlLayout layout = Params().layout;
  auto control = MapSharedMemory(welcome.fds[WelcomeFds::kControl].get(), layout.region_bytes(), true, false);
  ASSERT_TRUE(control.ok()) << control.status();
  auto view = OpenControl(control->data(), control->bytes());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->header->session, session);
  const uint32_t extents = source_->extent_count();
  auto table =
      MapSharedMemory(welcome.fds[WelcomeFds::Residency(0)].get(), ResidencyBytes(extents), false, true);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(reinterpret_cast<ResidencyHeader*>(table->data())->extent_count, extents);
  EXPECT_FALSE(MapSharedMemory(welcome.fds[WelcomeFds::Residency(0)].get(), 4096, true, false).ok())
      << "clients only read it";
  EXPECT_TRUE(MapSharedMemory(welcome.fds[WelcomeFds::Pins(0)].get(), PinsBytes(extents), true, false).ok());
  for (size_t i = 0; i < core_->Stats().segments; ++i) {
    const SidePacket added = Receive(client.get());
    ASSERT_EQ(added.message.type, SideType::kSegmentAdded);
    ASSERT_THAT(added.fds, SizeIs(1));
    auto segment = MapSharedMemory(added.fds[0].get(), added.message.bytes, false, false);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_FALSE(MapSharedMemory(added.fds[0].get(), added.message.bytes, true, false).ok());
    EXPECT_NE(ftruncate(added.fds[0].get(), 0), 0);
  }
  EXPECT_EQ(Receive(client.get()).message.type, SideType::kReady);
  EXPECT_TRUE(absl::IsUnavailable(ReceiveSideMessage(client.get()).status()));
}

TEST_F(SideSocketTest, FillGoesOnOnceRetirementIsAcknowledged) {
  Start(1024 * 1024, {.layers = 2, .experts = 2, .part_bytes = 100 * 1024});
  AddPack(
      {.model_id = "feedfacefeedfacefeedfacefeedface", .layers = 1, .experts = 1, .part_bytes = 140 * 1024});
  SessionParams params = Params();
  params.packs = {0, 1};
  auto handle = core_->OpenSession(params);
  ASSERT_TRUE(handle.ok()) << handle.status();
  auto [server, peer] = SocketPair();
  ASSERT_TRUE(core_->AttachSideSocket(handle->session, std::move(server)).ok());
  LocalClient client = Client(handle->session);
  EXPECT_EQ(Receive(peer.get()).message.type, SideType::kWelcome);
  for (uint32_t e = 0; e < 3; ++e) {
    client.Submit(LocalClient::FillExpert(e, e / 2, e % 2));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  }
  SubmissionEntry large = LocalClient::FillExpert(9, 0, 0);
  large.pack = 1;
  client.Submit(large);
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(0)) << "its room is still mapped by the client";
  EXPECT_EQ(Next(&client), std::nullopt);
  EXPECT_GT(core_->Stats().retired_bytes, 0u);
  while (true) {
    auto packet = ReceiveSideMessage(peer.get());
    if (!packet.ok()) {
      break;
    }
    if (packet->message.type == SideType::kSegmentRetired) {
      SideMessage ack;
      ack.type = SideType::kSegmentUnmapped;
      ack.segment = packet->message.segment;
      ASSERT_TRUE(SendSideMessage(peer.get(), ack).ok());
      HandleEvents();
    }
  }
  EXPECT_EQ(core_->Stats().retired_bytes, 0u);
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_LE(core_->Stats().segment_bytes, 1024u * 1024);
}

TEST_F(SideSocketTest, FillStopsWaitingForAClientThatNeverUnmaps) {
  Start(1024 * 1024, {.layers = 2, .experts = 2, .part_bytes = 100 * 1024});
  AddPack(
      {.model_id = "feedfacefeedfacefeedfacefeedface", .layers = 1, .experts = 1, .part_bytes = 140 * 1024});
  SessionParams params = Params();
  params.packs = {0, 1};
  const uint64_t session = core_->OpenSession(params)->session;
  auto [server, peer] = SocketPair();
  ASSERT_TRUE(core_->AttachSideSocket(session, std::move(server)).ok());
  LocalClient client = Client(session);
  for (uint32_t e = 0; e < 3; ++e) {
    client.Submit(LocalClient::FillExpert(e, e / 2, e % 2));
    Pump();
    reader_.CompleteAll();
    Pump();
    Next(&client);
  }
  SubmissionEntry large = LocalClient::FillExpert(9, 0, 0);
  large.pack = 1;
  client.Submit(large);
  Pump();
  EXPECT_EQ(Next(&client), std::nullopt);
  ASSERT_NE(core_->NextDeadline(), 0);
  const int64_t asked = clock_.NowNanos();
  for (int i = 0; i < 2; ++i) {  // the client is slow, then lost
    clock_.Advance(core_->NextDeadline() - clock_.NowNanos());
    Pump();
  }
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(clock_.NowNanos() - asked, 2'000'000'000);
  client.Submit(large);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kResourceExhausted) << "nobody waits for it twice";
  ASSERT_TRUE(core_->CloseSession(session).ok());
  EXPECT_EQ(core_->Stats().retired_bytes, 0u) << "an ended session maps nothing";
}

// A client in a process of its own: connects, closes the connection at the first byte on `gate`, then lives
// on.
pid_t StartClient(const std::string& path, int gate) {
  const pid_t child = fork();
  if (child != 0) {
    return child;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  char byte;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || read(gate, &byte, 1) != 1) {
    _exit(1);
  }
  close(fd);
  while (true) {
    pause();
  }
}

TEST_F(SideSocketTest, SocketCloseLosesAndProcessExitEndsSession) {
  Start(8 * kExpert);
  const uint64_t session = OpenSession();
  LocalClient leases = Client(session);
  HoldAll(&leases);
  TempDir dir;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  dir.File("side").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const pid_t child = StartClient(dir.File("side"), gate[0]);
  ASSERT_GT(child, 0);
  ASSERT_TRUE(core_->AttachSideSocket(session, UniqueFd(accept(listener.get(), nullptr, nullptr))).ok());
  EXPECT_EQ(core_->Stats().sessions[0].state, "active");

  ASSERT_EQ(write(gate[1], "x", 1), 1);
  while (core_->Stats().sessions[0].state == "active") {
    for (const PollEvent& event : poller_.Wait(10'000)) {
      core_->HandleEvent(event);
    }
  }
  ASSERT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_EQ(core_->Stats().sessions[0].state, "lost");
  EXPECT_EQ(core_->Stats().sessions[0].held_extents, 6u) << "its process may still read";

  kill(child, SIGKILL);
  while (!core_->Stats().sessions.empty()) {
    for (const PollEvent& event : poller_.Wait(10'000)) {
      core_->HandleEvent(event);
    }
  }
  waitpid(child, nullptr, 0);
  close(gate[0]);
  close(gate[1]);
}

TEST_F(SideSocketTest, StrangeSideMessagesEndTheSession) {
  Start(8 * kExpert);
  for (int kind = 0; kind < 4; ++kind) {
    const uint64_t session = OpenSession();
    auto [server, peer] = SocketPair();
    ASSERT_TRUE(core_->AttachSideSocket(session, std::move(server)).ok());
    SideMessage message;
    message.type = SideType::kSegmentUnmapped;
    message.segment = 4711;  // there is no such segment: ignored
    ASSERT_TRUE(SendSideMessage(peer.get(), message).ok());
    HandleEvents();
    ASSERT_THAT(core_->Stats().sessions, SizeIs(1));
    const int fd = peer.get();
    if (kind == 0) {
      message.type = SideType::kSegmentAdded;
      ASSERT_TRUE(SendSideMessage(peer.get(), message).ok());
    } else if (kind == 1) {
      ASSERT_EQ(send(peer.get(), "hello", 5, 0), 5);
    } else if (kind == 2) {
      ASSERT_TRUE(SendSideMessage(peer.get(), message, std::span<const int>(&fd, 1)).ok());
    } else {
      message.version = 9;
      ASSERT_TRUE(SendSideMessage(peer.get(), message).ok());
    }
    HandleEvents();
    EXPECT_THAT(core_->Stats().sessions, SizeIs(0)) << kind;
    EXPECT_EQ(core_->Stats().sessions_lost, static_cast<uint64_t>(kind) + 1);
  }
}

TEST_F(SideSocketTest, CompletionWaitsUntilItsSegmentWasAnnounced) {
  Start(30 * kExpert);
  const uint64_t session = OpenSession();
  auto [server, peer] = SocketPair();
  const int small = 1;
  setsockopt(server.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  ASSERT_TRUE(core_->AttachSideSocket(session, std::move(server)).ok());
  LocalClient client = Client(session);
  uint64_t ids = 0;
  uint64_t reaped = 0;
  // The peer reads nothing: sooner or later an announcement finds the socket full.
  for (uint32_t e = 0; e < 24; ++e) {
    client.Submit(LocalClient::FillExpert(++ids, e / 8, e % 8));
    Pump();
    reader_.CompleteAll();
    Pump();
    while (Next(&client)) {
      ++reaped;
    }
  }
  ASSERT_LT(reaped, ids) << "the socket took everything: the test shows nothing";
  while (ReceiveSideMessage(peer.get()).ok()) {
    HandleEvents();
  }
  while (Next(&client)) {
    ++reaped;
  }
  EXPECT_EQ(reaped, ids);
}

}  // namespace
}  // namespace sluice::weightd
