// Slabs that clients offer for transfers: the accepted ones, the refused ones and the reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "common/protocol/copier.h"
#include "common/protocol/side_channel.h"
#include "tests/weightd/engine/transfer_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::SizeIs;

// Offers of a hostile client on the side socket, and their replies. The session lives on each time.
TEST_F(TransferSessionTest, FalseOffersAreRefusedByName) {
  Start(8 * kExpert);
  Peer stranger = Join();
  stranger.client->Submit(Transfer(1, 0, 0));  // so that there is a segment
  Settle();
  Read();
  const uint64_t session = OpenSession();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd client(ends[1]);
  ASSERT_TRUE(core_->AttachSideSocket(session, UniqueFd(ends[0])).ok());
  const SidePacket welcome = *ReceiveSideMessage(client.get());
  std::vector<SidePacket> segments;
  for (auto packet = ReceiveSideMessage(client.get()); packet.ok();
       packet = ReceiveSideMessage(client.get())) {
    if (packet->message.type == SideType::kSegmentAdded) {
      segments.push_back(*std::move(packet));
    }
  }
  ASSERT_FALSE(segments.empty());
  const auto memory = [](uint64_t bytes) {
    SharedMemory made = *CreateSharedMemory("slab", bytes, PeerAccess::kReadWrite);
    std::memset(made.map.data(), 1, made.map.bytes());
    return made;
  };
  const auto offer = [&](uint32_t number, int fd, uint64_t bytes, uint8_t kind, DeviceUuid device = {}) {
    SideMessage message;
    message.type = SideType::kSlabOffered;
    message.session = session;
    message.slab = number;
    message.bytes = bytes;
    message.handle_kind = kind;
    message.device = device;
    EXPECT_TRUE(SendSideMessage(client.get(), message, {&fd, fd < 0 ? 0u : 1u}).ok());
    HandleEvents();
    Settle();
    const auto answer = ReceiveSideMessage(client.get());
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->message.type, SideType::kSlabMapped);
    EXPECT_EQ(answer->message.slab, number);
    return static_cast<absl::StatusCode>(answer->message.code);
  };
  const auto file = static_cast<uint8_t>(HandleKind::kMemoryFile);
  const auto cuda = static_cast<uint8_t>(HandleKind::kCudaFd);
  const SharedMemory good = memory(64 * 1024);
  const SharedMemory other = memory(64 * 1024);
  const int fd = good.fd.get();
  for (const int kind : {0, 4, 255}) {
    EXPECT_EQ(offer(1, fd, 64 * 1024, static_cast<uint8_t>(kind)), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(offer(1, fd, 64 * 1024, cuda), absl::StatusCode::kUnimplemented) << "no copier of that kind";
  EXPECT_EQ(offer(1, -1, 64 * 1024, static_cast<uint8_t>(HandleKind::kCudaIpc)),
            absl::StatusCode::kUnimplemented)
      << "nor of that";
  EXPECT_EQ(offer(1, fd, 64 * 1024, file, {1}), absl::StatusCode::kInvalidArgument) << "a file on a device";
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{68 * 1024}, ~uint64_t{0}}) {
    EXPECT_EQ(offer(1, fd, bytes, file), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(offer(kNoSlab, fd, 64 * 1024, file), absl::StatusCode::kAlreadyExists);
  // weightd's own files: those it holds, and those it gave this session.
  EXPECT_EQ(offer(1, segments[0].fds[0].get(), segments[0].message.bytes, file),
            absl::StatusCode::kInvalidArgument);
  for (const size_t region : {WelcomeFds::kControl, WelcomeFds::Residency(0), WelcomeFds::Pins(0)}) {
    struct stat info;
    ASSERT_EQ(fstat(welcome.fds[region].get(), &info), 0);
    // Its pages must be there for the offer to come so far.
    const auto map = MapSharedMemory(welcome.fds[region].get(), static_cast<uint64_t>(info.st_size),
                                     /*writable=*/false, /*populate=*/true);
    ASSERT_TRUE(map.ok()) << map.status();
    const absl::StatusCode code =
        offer(1, welcome.fds[region].get(), static_cast<uint64_t>(info.st_size), file);
    EXPECT_TRUE(code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kInvalidArgument)
        << region << ": " << static_cast<int>(code);
    if (region == WelcomeFds::Pins(0)) {
      EXPECT_EQ(code, absl::StatusCode::kPermissionDenied);
    }
  }
  // Pipes, sockets and bells are no memory.
  EXPECT_EQ(offer(1, welcome.fds[WelcomeFds::kServerBell].get(), 4096, file),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(offer(1, fd, 64 * 1024, file), absl::StatusCode::kOk) << "the session lives on";
  EXPECT_EQ(offer(1, other.fd.get(), 64 * 1024, file), absl::StatusCode::kAlreadyExists) << "its number";
  EXPECT_EQ(offer(2, fd, 64 * 1024, file), absl::StatusCode::kPermissionDenied) << "its file";
  EXPECT_EQ(offer(2, stranger.memory.fd.get(), stranger.memory.map.bytes(), file),
            absl::StatusCode::kPermissionDenied)
      << "somebody else's file";
  EXPECT_EQ(offer(2, other.fd.get(), 64 * 1024, file), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().sessions_lost, 0u);
}

TEST_F(TransferSessionTest, OfferWithWrongDescriptorsEndsOnlyItsSession) {
  Start(8 * kExpert);
  Peer other = Join();
  uint64_t lost = 0;
  const UniqueFd some(eventfd(0, EFD_CLOEXEC));
  const std::array<int, 2> fds = {some.get(), some.get()};
  for (const auto& [kind, descriptors] :
       std::vector<std::pair<HandleKind, size_t>>{{HandleKind::kMemoryFile, 0},
                                                  {HandleKind::kCudaFd, 0},
                                                  {HandleKind::kCudaFd, 2},
                                                  {HandleKind::kCudaIpc, 1}}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd client(ends[1]);
    SideMessage message;
    message.type = SideType::kSlabOffered;
    message.session = OpenSession();
    message.slab = 1;
    message.bytes = 64 * 1024;
    message.handle_kind = static_cast<uint8_t>(kind);
    ASSERT_TRUE(core_->AttachSideSocket(message.session, UniqueFd(ends[0])).ok());
    ASSERT_TRUE(SendSideMessage(client.get(), message, {fds.data(), descriptors}).ok());
    HandleEvents();
    Settle();
    EXPECT_EQ(core_->Stats().sessions_lost, ++lost) << NameOf(kind) << " with " << descriptors;
  }
  other.client->Submit(Transfer(1, 2, 3));
  Settle();
  Read();
  EXPECT_EQ(CodeOf(Next(other.client.get())), absl::StatusCode::kOk);
  EXPECT_TRUE(Holds(other, 2, 3));
}

// A client waits for this close before it frees its slabs: it learns at once that its session is over.
TEST_F(TransferSessionTest, SideSocketClosesAfterTheLastCopyIntoSlabs) {
  Start(8 * kExpert);
  for (const bool lost : {false, true}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd side(ends[1]);
    const uint64_t session = OpenSession();
    ASSERT_TRUE(core_->AttachSideSocket(session, UniqueFd(ends[0])).ok());
    const SharedMemory memory = *CreateSharedMemory("slab", 8 * kExpert, PeerAccess::kReadWrite);
    std::memset(memory.map.data(), 1, memory.map.bytes());
    SideMessage offer;
    offer.type = SideType::kSlabOffered;
    offer.session = session;
    offer.slab = kSlabNumber;
    offer.bytes = memory.map.bytes();
    offer.handle_kind = static_cast<uint8_t>(HandleKind::kMemoryFile);
    offer.link_latency_nanos = 1'000'000'000;
    const int fd = memory.fd.get();
    ASSERT_TRUE(SendSideMessage(side.get(), offer, {&fd, 1}).ok());
    HandleEvents();
    Settle();
    Client(session).Submit(Transfer(1, 0, 0));
    Settle();
    Read();
    ASSERT_NE(engine_.NextArrival(), 0) << "a chunk is on its way";
    const auto polled = [&] {
      pollfd poll_fd{side.get(), POLLRDHUP, 0};
      poll(&poll_fd, 1, 0);
      return poll_fd.revents & (POLLRDHUP | POLLHUP);
    };
    EXPECT_EQ(polled(), 0);
    if (lost) {
      core_->OnConnectionLost(session);
    } else {
      ASSERT_TRUE(core_->CloseSession(session).ok());
    }
    Settle();
    EXPECT_EQ(polled(), POLLRDHUP);
    Arrivals();
    EXPECT_EQ(polled(), POLLRDHUP | POLLHUP);
  }
}

TEST_F(TransferSessionTest, SlabNumbersAreUsedOnceAndBounded) {
  Start(8 * kExpert);
  Peer peer = Join();
  auto slab = HostSlab::Map(peer.memory.fd.get(), peer.memory.map.bytes());
  ASSERT_TRUE(slab.ok());
  EXPECT_EQ(core_->AddSlab(peer.session, kSlabNumber, *slab, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(core_->AddSlab(peer.session, kNoSlab, *slab, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(core_->AddSlab(999, 1, *slab, {}).code(), absl::StatusCode::kNotFound);
  for (uint32_t number = 100; number < 100 + kMaxSessionSlabs - 1; ++number) {
    EXPECT_TRUE(core_->AddSlab(peer.session, number, *slab, {}).ok());
  }
  EXPECT_EQ(core_->AddSlab(peer.session, 7, *slab, {}).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace sluice::weightd
