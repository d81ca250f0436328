#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/protocol/shared_memory.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

bool IsReadable(int fd, int timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return poll(&polled, 1, timeout_ms) == 1;
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

TEST(ProcessFdTest, OwnFdNamesThisProcessAndIsNotReadable) {
  const auto fd = ProcessFdOfSelf();
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(ProcessOf(fd->get()), getpid());
  EXPECT_FALSE(IsReadable(fd->get(), 0));
}

TEST(ProcessFdTest, OtherDescriptorsNameNoProcess) {
  EXPECT_EQ(ProcessOf(-1), 0);
  EXPECT_EQ(ProcessOf(STDERR_FILENO), 0);
}

// Connects from a child: the acceptor's descriptor of it is valid until the child has exited.
TEST(ProcessFdTest, ClientFdTurnsReadableWhenTheClientExits) {
  const TempDir dir;
  const sockaddr_un address = AddressOf(dir.path() + "/socket");
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int connected = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char byte;
    const bool ok = connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                    read(connected, &byte, 1) == 1;  // until the test writes
    _exit(ok ? 0 : 1);
  }
  const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  const UniqueFd process = ProcessFdOfClient(accepted.get());
  ASSERT_TRUE(process.valid());
  EXPECT_EQ(ProcessOf(process.get()), child);
  EXPECT_FALSE(IsReadable(process.get(), 0));
  ASSERT_EQ(write(accepted.get(), "x", 1), 1);
  EXPECT_TRUE(IsReadable(process.get(), 60'000));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ProcessOf(process.get()), 0);
}

}  // namespace
}  // namespace sluice
