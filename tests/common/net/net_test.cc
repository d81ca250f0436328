#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/connection_acceptor.h"
#include "common/base/unix_listener.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool ReadsEnd(int fd) {
  pollfd polled{fd, POLLIN, 0};
  char byte;
  return poll(&polled, 1, 5000) == 1 && read(fd, &byte, 1) == 0;
}

// Duplicates into every free descriptor number below `fd`.
std::vector<UniqueFd> TakeEveryNumberBelow(int fd) {
  std::vector<UniqueFd> fill;
  for (int i = 0; i < fd; ++i) {
    if (fcntl(i, F_GETFD) < 0) {
      fill.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, i));
    }
  }
  return fill;
}

TEST(SocketLock, SecondHolderIsRefusedAtOnceNamingTheFirst) {
  TempDir dir;
  const auto first = SocketLock::Acquire(dir.File("s"));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = SocketLock::Acquire(dir.File("s"));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("process " + std::to_string(getpid())), absl::string_view::npos)
      << second.status();
}

TEST(SocketLock, IsFreeAgainAfterItsHolderHasGone) {
  TempDir dir;
  { ASSERT_TRUE(SocketLock::Acquire(dir.File("s")).ok()); }
  EXPECT_TRUE(SocketLock::Acquire(dir.File("s")).ok());
}

TEST(SocketLock, MissingFolderIsNamed) {
  const auto lock = SocketLock::Acquire("/nonexistent-folder/s");
  EXPECT_EQ(lock.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(lock.status().message().find("/nonexistent-folder/s.lock"), absl::string_view::npos);
}

TEST(UnixListener, FileHasTheModeAskedForAndGoesWithTheOwner) {
  TempDir dir;
  {
    const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0660);
    ASSERT_TRUE(listener.ok()) << listener.status();
    struct stat info;
    ASSERT_EQ(stat(dir.File("s").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0660u);
  }
  EXPECT_FALSE(Exists(dir.File("s")));
}

TEST(UnixListener, ReplacesTheFileThatAKilledServerLeft) {
  TempDir dir;
  const pid_t child = fork();
  if (child == 0) {
    const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kSeqPacket, 0600);
    _exit(listener.ok() ? 0 : 1);  // no destructor: the file stays, as after SIGKILL
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(Exists(dir.File("s")));
  EXPECT_TRUE(absl::IsUnavailable(ConnectUnix(dir.File("s"), UnixSocketType::kSeqPacket).status()));
  const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  EXPECT_TRUE(listener.ok()) << listener.status();
}

TEST(UnixListener, LeavesALiveServersFileAlone) {
  TempDir dir;
  const auto first = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  ASSERT_TRUE(first.ok());
  const auto second = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  const auto other_type = UnixListener::Bind(dir.File("s"), UnixSocketType::kSeqPacket, 0600);
  EXPECT_EQ(other_type.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(ConnectUnix(dir.File("s"), UnixSocketType::kStream).ok());
}

TEST(UnixListener, LeavesAnOrdinaryFileAlone) {
  TempDir dir;
  std::ofstream(dir.File("s")) << "precious";
  const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  EXPECT_EQ(listener.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Exists(dir.File("s")));
}

TEST(UnixListener, PathsThatNoAddressHoldsAreRefusedByLength) {
  EXPECT_EQ(UnixListener::Bind("", UnixSocketType::kStream, 0600).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Bind("relative", UnixSocketType::kStream, 0600).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto longer = UnixListener::Bind("/" + std::string(kMaxUnixPath, 'x'), UnixSocketType::kStream, 0600);
  EXPECT_NE(longer.status().message().find("108 bytes"), absl::string_view::npos) << longer.status();
}

TEST(PeerPolicy, AllowsOwnUserRootAndTheNamedOnly) {
  const PeerPolicy policy{{4242}, {}};
  EXPECT_TRUE(policy.Allows({1, geteuid(), 0, {}}));
  EXPECT_TRUE(policy.Allows({1, 0, 0, {}}));
  EXPECT_TRUE(policy.Allows({1, 4242, 0, {}}));
  EXPECT_FALSE(policy.Allows({1, 4243, 0, {}}));
}

TEST(PeerPolicy, AllowsMembersOfTheNamedGroups) {
  const PeerPolicy policy{{}, {77}};
  EXPECT_TRUE(policy.Allows({1, 4242, 77, {}}));
  EXPECT_TRUE(policy.Allows({1, 4242, 5, {6, 77, 8}}));
  EXPECT_FALSE(policy.Allows({1, 4242, 5, {6, 8}}));
}

TEST(PeerOf, TellsTheSupplementaryGroupsOfThePeer) {
  std::vector<gid_t> own(NGROUPS_MAX);
  const int count = getgroups(NGROUPS_MAX, own.data());
  ASSERT_GE(count, 0);
  own.resize(static_cast<size_t>(count));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd a(ends[0]);
  const UniqueFd b(ends[1]);
  const auto peer = PeerOf(a.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->groups, own);
  EXPECT_EQ(peer->gid, getegid());
}

// A listening socket as a service manager leaves it: inherited, blocking.
UniqueFd Listen(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd.get(), 5), 0);
  return fd;
}

TEST(UnixListener, AdoptedSocketServesAndItsFileStays) {
  TempDir dir;
  {
    auto listener = UnixListener::Adopt(Listen(dir.File("s"), SOCK_STREAM), UnixSocketType::kStream);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(listener->path(), dir.File("s"));
    EXPECT_NE(fcntl(listener->fd(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(listener->fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE(ConnectUnix(dir.File("s"), UnixSocketType::kStream).ok());
  }
  EXPECT_TRUE(Exists(dir.File("s")));
}

TEST(UnixListener, AdoptsNothingButListeningUnixSocketsOfTheType) {
  TempDir dir;
  EXPECT_TRUE(absl::IsInvalidArgument(
      UnixListener::Adopt(Listen(dir.File("a"), SOCK_SEQPACKET), UnixSocketType::kStream).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      UnixListener::Adopt(UniqueFd(socket(AF_UNIX, SOCK_STREAM, 0)), UnixSocketType::kStream).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      UnixListener::Adopt(UniqueFd(socket(AF_INET, SOCK_STREAM, 0)), UnixSocketType::kStream).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      UnixListener::Adopt(UniqueFd(open("/dev/null", O_RDONLY)), UnixSocketType::kStream).status()));
}

TEST(InheritedSockets, ThoseMeantForAnotherProcessAreLeftAlone) {
  for (const auto& [pid, fds] : std::vector<std::pair<std::string, std::string>>{
           {std::to_string(getpid() + 1), "1"}, {"", "1"}, {"x", "y"}}) {
    ASSERT_EQ(setenv("LISTEN_PID", pid.c_str(), 1), 0);
    ASSERT_EQ(setenv("LISTEN_FDS", fds.c_str(), 1), 0);
    auto sockets = InheritedSockets::Take();
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_TRUE(sockets->CheckAllClaimed().ok());
    EXPECT_EQ(getenv("LISTEN_FDS"), nullptr);
  }
  EXPECT_TRUE(InheritedSockets::Take().ok());
}

TEST(InheritedSockets, NumbersThatAreNoneAreRefused) {
  for (const char* fds : {"many", "-1", "99999999", ""}) {
    ASSERT_EQ(setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1), 0);
    ASSERT_EQ(setenv("LISTEN_FDS", fds, 1), 0);
    EXPECT_TRUE(absl::IsInvalidArgument(InheritedSockets::Take().status())) << fds;
  }
}

TEST(ConnectionAcceptor, HandsOnConnectionsWithTheirPeersCredentials) {
  TempDir dir;
  const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  ASSERT_TRUE(listener.ok());
  absl::Notification done;
  PeerCredentials seen;
  UniqueFd accepted;
  auto acceptor = ConnectionAcceptor::Start(
      listener->fd(), {},
      [&](AcceptedPeer peer) {
        seen = peer.credentials;
        accepted = std::move(peer.socket);
        done.Notify();
      },
      [](const std::string& why) { ADD_FAILURE() << why; });
  ASSERT_TRUE(acceptor.ok());
  const auto client = ConnectUnix(dir.File("s"), UnixSocketType::kStream);
  ASSERT_TRUE(client.ok());
  done.WaitForNotification();
  EXPECT_EQ(seen.pid, getpid());
  EXPECT_EQ(seen.uid, geteuid());
  EXPECT_NE(fcntl(accepted.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(accepted.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(ConnectionAcceptor, ClosesWhatItCannotAcceptWhenDescriptorsRunOut) {
  TempDir dir;
  const auto listener = UnixListener::Bind(dir.File("s"), UnixSocketType::kStream, 0600);
  ASSERT_TRUE(listener.ok());
  absl::Notification refused;
  auto acceptor = ConnectionAcceptor::Start(
      listener->fd(), {}, [](AcceptedPeer) { ADD_FAILURE() << "accepted"; },
      [&](const std::string& why) {
        EXPECT_NE(why.find("descriptors"), std::string::npos) << why;
        refused.Notify();
      });
  ASSERT_TRUE(acceptor.ok());
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  dir.File("s").copy(address.sun_path, kMaxUnixPath);
  const std::vector<UniqueFd> fill = TakeEveryNumberBelow(client.get());
  rlimit saved;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit tight = saved;
  tight.rlim_cur = static_cast<rlim_t>(client.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(ReadsEnd(client.get()));
  refused.WaitForNotification();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &saved), 0);
}

}  // namespace
}  // namespace sluice
