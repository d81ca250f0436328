// Sessions: what they are promised, how they end, what a misbehaving one can do, what travels on the side
// socket.
//
// Thread safety: tests, one thread.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "common/ring/side_channel.h"
#include "tests/support/temp_dir.h"
#include "tests/weightd/core_fixture.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class SessionEndTest : public CoreTest {
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
      ASSERT_TRUE(client->Lease(ExpertGid(0, 0) + i, &place));
    }
    while (Next(client)) {
    }
  }
  // What a second session gets when it asks for something else.
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

TEST_F(SessionEndTest, OpenSessionRefusesWithTheNumbersWhenMinimaAndDenseExceedTheBudget) {
  Start(6 * kExpert + 4096, {.dense = {4096, 4096}, .layers = 4, .experts = 8, .part_bytes = kPart});
  EXPECT_EQ(core_->OpenSession(Params(3)).status().code(), absl::StatusCode::kResourceExhausted);
  OpenSession(1);
  OpenSession(1);
  const absl::Status refused = core_->OpenSession(Params(1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t number : {6 * kExpert + 4096, 6 * kExpert + 8192, 2 * kExpert, 4 * kExpert, uint64_t{8192}}) {
    EXPECT_THAT(refused.ToString(), HasSubstr(std::to_string(number)));
  }
}

TEST_F(SessionEndTest, OpenSessionChecksAbiPacksLayoutAndDraining) {
  Start(8 * kExpert);
  SessionParams params = Params();
  params.abi.pin_entry = 8;
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(core_->OpenSession(params).status().ToString(), HasSubstr("pin_entry"));
  params = Params();
  params.packs = {1};
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  params.packs = {0, 0};
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  params = Params();
  params.layout.ring_entries = 100;
  EXPECT_EQ(core_->OpenSession(params).status().code(), absl::StatusCode::kInvalidArgument);
  core_->Drain();
  EXPECT_EQ(core_->OpenSession(Params()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionEndTest, PackBelowItsWorkingMinimumIsRefusedWithTheNumbers) {
  Start(8 * kExpert);
  auto source = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{
      .model_id = "feedfacefeedfacefeedfacefeedface", .dense = {7 * kExpert}, .part_bytes = kPart});
  const auto refused = core_->AddPack(std::move(source), {0});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().ToString(), HasSubstr(std::to_string(9 * kExpert)));
}

TEST_F(SessionEndTest, LostConnectionGetsNoNewWorkButItsPinsHoldUntilTheProcessIsGone) {
  Start(6 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  LocalClient b = Client(OpenSession());
  for (uint32_t e = 0; e < 6; ++e) {
    a.Submit(LocalClient::FillExpert(e, 0, e));
  }
  Pump();
  reader_.CompleteAll();
  Pump();
  uint64_t place;
  for (uint32_t i = 0; i < 18; ++i) {
    ASSERT_TRUE(a.Lease(ExpertGid(0, 0) + i, &place));
  }
  a.Submit(LocalClient::FillExpert(50, 3, 3));
  core_->OnConnectionLost(first);
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(0)) << "no new work";
  EXPECT_EQ(Ask(&b, 1), absl::StatusCode::kResourceExhausted) << "its pins hold";
  EXPECT_EQ(core_->Stats().sessions[0].state, "lost");
  EXPECT_EQ(core_->Stats().sessions[0].held_extents, 18u);
  core_->OnProcessExit(first);
  EXPECT_EQ(Ask(&b, 2), absl::StatusCode::kOk);
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
}

TEST_F(SessionEndTest, CloseReleasesEverythingAtOnceAndKeepsWhatIsResident) {
  Start(4 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  HoldAll(&a);
  ASSERT_TRUE(core_->CloseSession(first).ok());
  EXPECT_EQ(core_->CloseSession(first).code(), absl::StatusCode::kNotFound);
  LocalClient b = Client(OpenSession());
  b.Submit(LocalClient::FillExpert(1, 0, 0));
  Pump();
  const auto warm = Next(&b);
  ASSERT_TRUE(warm);
  EXPECT_EQ(warm->bytes, 0u) << "a restart finds it warm";
}

TEST_F(SessionEndTest, RequestsOfAnEndedSessionDisturbNobodyWhoJoinedThem) {
  Start(8 * kExpert);
  const uint64_t first = OpenSession();
  LocalClient a = Client(first);
  LocalClient b = Client(OpenSession());
  a.Submit(LocalClient::FillExpert(1, 0, 0));
  a.Submit(LocalClient::FillExpert(2, 0, 1));
  b.Submit(LocalClient::FillExpert(1, 0, 0));
  Pump();
  ASSERT_TRUE(core_->CloseSession(first).ok());
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "what nobody else wants is dropped";
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&b)), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
}

TEST_F(SessionEndTest, GarbageInOneClientsRegionsLosesOnlyItsOwnSession) {
  Start(30 * kExpert);
  LocalClient good = Client(OpenSession());
  std::mt19937_64 random(5);
  int lost = 0;
  for (int round = 0; round < 200; ++round) {
    auto handle = core_->OpenSession(Params());
    ASSERT_TRUE(handle.ok()) << handle.status();
    const LocalSession bad = *core_->Local(handle->session);
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(bad.control.header);
    const uint64_t count = bad.control.layout.region_bytes() / 8;
    for (int i = 0; i < 200; ++i) {
      words[random() % count].store(random() % 4 == 0 ? random() % 70 : random());
    }
    for (uint32_t e = 0; e < bad.packs[0].extent_count; ++e) {
      bad.packs[0].pins[e].pins.store(static_cast<uint32_t>(random()));
      bad.packs[0].pins[e].last_step.store(random());
    }
    bad.control.cursors->submission_tail.value.store(random() % 80);
    Pump();
    reader_.CompleteAll();
    Pump();
    lost += core_->CloseSession(handle->session).ok() ? 0 : 1;
    Pump();
    good.Submit(LocalClient::FillExpert(1, 1, 1));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(&good)), absl::StatusCode::kOk);
  }
  EXPECT_GT(lost, 100);
  EXPECT_EQ(core_->Stats().sessions_lost, static_cast<uint64_t>(lost));
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_EQ(core_->Stats().sessions[0].outstanding, 0u);
}

TEST_F(SessionEndTest, PinsOfAMisbehavingSessionAreIgnoredAtOnce) {
  Start(4 * kExpert);
  LocalClient a = Client(OpenSession());
  LocalClient b = Client(OpenSession());
  HoldAll(&a);
  uint64_t place;
  b.Submit(LocalClient::FillExpert(1, 1, 0));
  b.Submit(LocalClient::FillExpert(2, 1, 1));
  Pump();
  reader_.CompleteAll();
  Pump();
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(b.Lease(ExpertGid(1, 0) + i, &place));
  }
  while (Next(&b)) {
  }
  EXPECT_EQ(Ask(&b, 3), absl::StatusCode::kResourceExhausted);
  a.session().control.cursors->completion_head.value.store(1'000'000);
  Pump();
  EXPECT_EQ(core_->Stats().sessions_lost, 1u);
  EXPECT_EQ(Ask(&b, 4), absl::StatusCode::kOk);
}

TEST_F(SessionEndTest, MoreOutstandingThanTheRingHoldsEndsTheSession) {
  Start(8 * kExpert);
  const uint64_t session = OpenSession();
  LocalClient client = Client(session);
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(client.Submit(LocalClient::Plain(i, Opcode::kNop)), RingResult::kOk);
  }
  Pump();
  EXPECT_EQ(client.Submit(LocalClient::Plain(64, Opcode::kNop)), RingResult::kOk) << "none was reaped";
  Pump();
  EXPECT_EQ(core_->CloseSession(session).code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionEndTest, AnEntryRewrittenAfterItWasTakenChangesNothing) {
  Start(8 * kExpert);
  LocalClient bad = Client(OpenSession());
  const LocalSession shared = bad.session();
  for (uint64_t i = 0; i < 16; ++i) {
    bad.Submit(LocalClient::FillExpert(i, 1, static_cast<uint32_t>(i % 2)));
    Pump();  // taken, and waiting for its reads
    auto* entries =
        reinterpret_cast<std::byte*>(shared.control.header) + shared.control.layout.submission_offset();
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(entries + i * sizeof(SubmissionEntry));
    for (size_t w = 0; w < sizeof(SubmissionEntry) / 8; ++w) {
      words[w].store(0xffffffffffffffff - w * i);
    }
    reader_.CompleteAll();
    Pump();
    const auto done = Next(&bad);
    ASSERT_EQ(CodeOf(done), absl::StatusCode::kOk);
    EXPECT_EQ(done->id, i);
  }
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
  EXPECT_EQ(core_->Stats().resident_extents, 6u) << "what was asked for at first, and nothing else";
}

TEST_F(SessionEndTest, OutOfRangeIndicesAreAnsweredAndTheSessionGoesOn) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  std::mt19937_64 random(6);
  const uint32_t edges[] = {8, 64, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  uint64_t id = 0;
  for (uint32_t value : edges) {
    SubmissionEntry entry = LocalClient::FillExpert(++id, value, 0);
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, value);
    client.Submit(entry);
    entry = LocalClient::FillExtent(++id, value == 8 || value == 64 ? 96 + value : value);
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.pack = value;
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.progress = value == 8 || value == 64 ? 100000 : value & 0xfffffffe;
    client.Submit(entry);
    entry = LocalClient::FillExpert(++id, 0, 0);
    entry.list_offset = value;
    entry.list_count = value;
    client.Submit(entry);
    Pump();
    while (const auto done = Next(&client)) {
      EXPECT_NE(CodeOf(done), absl::StatusCode::kOk) << done->id;
      EXPECT_NE(done->field, EntryField::kNone) << done->id;
    }
  }
  EXPECT_THAT(reader_.waiting(), SizeIs(0));
  client.Submit(LocalClient::FillExpert(++id, 0, 0));
  Pump();
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
}

TEST_F(SessionEndTest, AStoppedReaderOfCompletionsKeepsOnlyItsOwnRequestsWaiting) {
  Start(12 * kExpert);
  SessionParams params = Params();
  params.quota_bytes = 4 * kExpert;  // what it holds unreaped stays below this
  LocalClient stopped = Client(core_->OpenSession(params)->session);
  LocalClient good = Client(OpenSession());
  for (uint64_t i = 0; i < 32; ++i) {
    stopped.Submit(LocalClient::FillExpert(i, static_cast<uint32_t>(i / 8), static_cast<uint32_t>(i % 8)));
    Pump();
    reader_.CompleteAll();
    Pump();
  }
  for (uint64_t i = 0; i < 64; ++i) {
    good.Submit(LocalClient::FillExpert(i, static_cast<uint32_t>(i % 4), static_cast<uint32_t>(i / 8)));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(&good)), absl::StatusCode::kOk) << i;
  }
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
}

TEST_F(SessionEndTest, SessionThatIsNeverJoinedIsDropped) {
  attach_timeout_nanos_ = 1'000'000'000;
  Start(8 * kExpert);
  OpenSession();
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(1));
  EXPECT_NE(core_->NextDeadline(), 0);
  clock_.Advance(1'000'000'000);
  Pump();
  EXPECT_THAT(core_->Stats().sessions, SizeIs(0));
}

TEST_F(SessionEndTest, WelcomeBringsTheRegionsAndTheSegmentsFollow) {
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

TEST_F(SessionEndTest, RetiredSegmentWaitsForTheAcknowledgementAndThenTheFillGoesOn) {
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

TEST_F(SessionEndTest, FillGivesUpOnAClientThatNeverUnmaps) {
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
  for (int i = 0; i < 2; ++i) {  // the client is slow, then given up
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

TEST_F(SessionEndTest, ClosedSideSocketLosesTheSessionAndItsProcessExitEndsIt) {
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

TEST_F(SessionEndTest, StrangeSideMessagesEndTheSession) {
  Start(8 * kExpert);
  for (int kind = 0; kind < 4; ++kind) {
    const uint64_t session = OpenSession();
    auto [server, peer] = SocketPair();
    ASSERT_TRUE(core_->AttachSideSocket(session, std::move(server)).ok());
    SideMessage message;
    message.type = SideType::kSegmentUnmapped;
    message.segment = 4711;  // of no such segment: ignored
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

TEST_F(SessionEndTest, CompletionWaitsUntilItsSegmentWasAnnounced) {
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
}  // namespace sluice
