// Messages and descriptors over a socket pair, and the memory files that travel on it.
#include "common/protocol/side_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "common/protocol/session_abi.h"
#include "common/protocol/shared_memory.h"
#include "tests/support/fd_count.h"

namespace sluice {
namespace {

class SideChannelTest : public ::testing::Test {
 protected:
  SideChannelTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    a_.reset(ends[0]);
    b_.reset(ends[1]);
  }
  // Sends raw bytes with `count` copies of a descriptor, without SendSideMessage's checks.
  void SendRaw(const void* bytes, size_t size, size_t count) {
    alignas(cmsghdr) char control[CMSG_SPACE(250 * sizeof(int))] = {};
    iovec data{const_cast<void*>(bytes), size};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (count != 0) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(count * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(count * sizeof(int));
      for (size_t i = 0; i < count; ++i) {
        const int fd = a_.get();
        std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
      }
    }
    ASSERT_GE(sendmsg(a_.get(), &header, MSG_NOSIGNAL), 0);
  }

  UniqueFd a_;
  UniqueFd b_;
};

TEST_F(SideChannelTest, MessageAndDescriptorsArriveCloseOnExec) {
  SideMessage message;
  message.type = SideType::kSegmentAdded;
  message.segment = 12;
  message.bytes = 4096;
  const int fds[3] = {a_.get(), b_.get(), a_.get()};
  ASSERT_TRUE(SendSideMessage(a_.get(), message, fds).ok());
  auto packet = ReceiveSideMessage(b_.get());
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->message.segment, 12u);
  EXPECT_EQ(packet->message.fd_count, 3);
  ASSERT_EQ(packet->fds.size(), 3u);
  for (const UniqueFd& fd : packet->fds) {
    EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(SideChannelTest, EmptyIsUnavailableGonePeerFailedPrecondition) {
  EXPECT_TRUE(absl::IsUnavailable(ReceiveSideMessage(b_.get()).status()));
  a_.reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(ReceiveSideMessage(b_.get()).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(SendSideMessage(b_.get(), {})));
}

TEST_F(SideChannelTest, AFullSocketIsUnavailableAndNeverBlocks) {
  absl::Status status;
  int sent = 0;
  while ((status = SendSideMessage(a_.get(), {})).ok()) {
    ASSERT_LT(++sent, 1'000'000);
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(SideChannelTest, StrangersAreRefusedAndLeaveNoDescriptorBehind) {
  const size_t before = OpenFdCount();
  SideMessage message;
  SendRaw("hello", 5, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  char longer[sizeof(SideMessage) + 8] = {};
  std::memcpy(longer, &message, sizeof(message));
  SendRaw(longer, sizeof(longer), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  SendRaw(&message, sizeof(message), 2);  // claims none
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  message.fd_count = 200;
  SendRaw(&message, sizeof(message), 200);  // cut by the kernel
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  message = SideMessage{};
  message.version = kAbiVersion + 1;
  SendRaw(&message, sizeof(message), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  message = SideMessage{};
  message.magic = 1;
  SendRaw(&message, sizeof(message), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveSideMessage(b_.get()).status()));
  EXPECT_EQ(OpenFdCount(), before);
  EXPECT_TRUE(absl::IsInvalidArgument(SendSideMessage(a_.get(), {}, std::vector<int>(kMaxSideFds + 1, 0))));
}

TEST(SharedMemoryTest, ReadOnlyPeersCanOnlyRead) {
  auto memory = CreateSharedMemory("test", 5 * 1024 * 1024, PeerAccess::kReadOnly);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->map.data()) % (2 * 1024 * 1024), 0u) << "huge pages need it";
  memory->map.data()[0] = std::byte{42};
  auto peer = MapSharedMemory(memory->fd.get(), 5 * 1024 * 1024, /*writable=*/false, /*populate=*/true);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->data()[0], std::byte{42});
  memory->map.data()[1] = std::byte{43};
  EXPECT_EQ(peer->data()[1], std::byte{43}) << "the maker's stores stay visible";
  EXPECT_FALSE(MapSharedMemory(memory->fd.get(), 4096, /*writable=*/true, false).ok());
  EXPECT_NE(mprotect(peer->data(), 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_NE(ftruncate(memory->fd.get(), 0), 0);
  EXPECT_LT(pwrite(memory->fd.get(), "x", 1, 0), 0);
  const std::string reopened = "/proc/self/fd/" + std::to_string(memory->fd.get());
  const UniqueFd again(open(reopened.c_str(), O_RDWR));
  EXPECT_FALSE(again.valid() && pwrite(again.get(), "x", 1, 0) > 0);
}

TEST(SharedMemoryTest, SmallOrShrinkableFilesAreRefused) {
  const UniqueFd open_file(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_file.get(), 8192), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(MapSharedMemory(open_file.get(), 4096, false, false).status()));
  auto memory = CreateSharedMemory("test", 4096, PeerAccess::kReadWrite);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(MapSharedMemory(memory->fd.get(), 4096, true, false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(MapSharedMemory(memory->fd.get(), 4097, true, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MapSharedMemory(memory->fd.get(), 0, true, false).status()));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(MapSharedMemory(ends[0], 4096, false, false).ok());
  close(ends[0]);
  close(ends[1]);
}

uint64_t AddressSpaceBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST(SharedMemoryTest, MappingStartsOnAHugePageAndTakesNoMore) {
  constexpr uint64_t kMiB = 1024 * 1024;
  constexpr uint64_t kBytes = 3 * kMiB;
  std::vector<SharedMemory> held;
  held.reserve(32);
  const uint64_t before = AddressSpaceBytes();
  for (int i = 0; i < 32; ++i) {
    auto memory = CreateSharedMemory("aligned", kBytes, PeerAccess::kReadOnly);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->map.data()) % (2 * kMiB), 0u);
    held.push_back(*std::move(memory));
  }
  EXPECT_LE(AddressSpaceBytes() - before, 32 * kBytes + 4 * kMiB)
      << "what was reserved for the boundary stays";
}

}  // namespace
}  // namespace sluice
