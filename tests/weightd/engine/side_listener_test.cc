#include "weightd/engine/side_listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/unix_listener.h"
#include "common/protocol/session_abi.h"
#include "tests/support/fd_count.h"
#include "tests/support/temp_dir.h"

namespace sluice::weightd {
namespace {

constexpr int kPatienceMs = 10'000;

absl::StatusOr<SidePacket> Receive(int socket) {
  pollfd polled{socket, POLLIN, 0};
  if (poll(&polled, 1, kPatienceMs) != 1) {
    return absl::DeadlineExceededError("nothing came");
  }
  return ReceiveSideMessage(socket);
}

SideMessage Hello(const SessionNonce& nonce) {
  SideMessage hello;
  hello.type = SideType::kHello;
  hello.nonce = nonce;
  return hello;
}

class SideListenerTest : public testing::Test {
 protected:
  void Start(SideListenerOptions options = {}) {
    listener_.emplace(*UnixListener::Bind(dir_.File("side"), UnixSocketType::kSeqPacket, 0600));
    options.attach = [this](uint64_t session, UniqueFd socket) -> absl::Status {
      const MutexLock lock(&mutex_);
      if (!attach_status_.ok()) {
        return attach_status_;
      }
      attached_.emplace_back(session, std::move(socket));
      attached_signal_.SignalAll();
      return absl::OkStatus();
    };
    auto side = SideListener::Start(listener_->fd(), &nonces_, std::move(options));
    ASSERT_TRUE(side.ok()) << side.status();
    side_ = *std::move(side);
  }

  UniqueFd Connect() {
    auto fd = ConnectUnix(dir_.File("side"), UnixSocketType::kSeqPacket);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.ok() ? *std::move(fd) : UniqueFd();
  }

  // Waits until `count` sockets were attached.
  void AwaitAttached(size_t count) {
    const MutexLock lock(&mutex_);
    while (attached_.size() < count &&
           attached_signal_.WaitFor(&mutex_, std::chrono::milliseconds(kPatienceMs))) {
    }
    EXPECT_GE(attached_.size(), count);
  }

  // Expects REJECT with `code`, then the end.
  void ExpectRejected(int socket, absl::StatusCode code) {
    const auto packet = Receive(socket);
    ASSERT_TRUE(packet.ok()) << packet.status();
    EXPECT_EQ(packet->message.type, SideType::kReject);
    EXPECT_EQ(packet->message.code, static_cast<uint16_t>(code));
    EXPECT_TRUE(absl::IsFailedPrecondition(Receive(socket).status()));
  }

  TempDir dir_;
  SessionNonces nonces_;
  Mutex mutex_;
  CondVar attached_signal_;
  absl::Status attach_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, UniqueFd>> attached_ ABSL_GUARDED_BY(mutex_);
  std::optional<UnixListener> listener_;
  std::unique_ptr<SideListener> side_;
};

TEST(SessionNonces, AreUniqueAndGoodOnce) {
  SessionNonces nonces;
  const auto first = nonces.Issue(1);
  const auto second = nonces.Issue(2);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*nonces.Redeem(*second), 2u);
  EXPECT_EQ(*nonces.Redeem(*first), 1u);
  EXPECT_TRUE(absl::IsNotFound(nonces.Redeem(*first).status()));
  EXPECT_EQ(nonces.waiting(), 0u);
}

TEST(SessionNonces, ExpireAndMakeRoom) {
  absl::Time now = absl::UnixEpoch();
  SessionNonces nonces({.lifetime = absl::Seconds(5), .limit = 2, .now = [&now] { return now; }});
  const auto first = nonces.Issue(1);
  ASSERT_TRUE(first.ok() && nonces.Issue(2).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(nonces.Issue(3).status()));
  now += absl::Seconds(5);
  EXPECT_TRUE(absl::IsNotFound(nonces.Redeem(*first).status()));
  EXPECT_TRUE(nonces.Issue(3).ok());
  EXPECT_EQ(nonces.waiting(), 1u);
}

TEST(SessionNonces, RevokedNonceIsUnknown) {
  SessionNonces nonces;
  const auto nonce = nonces.Issue(7);
  nonces.Revoke(7);
  EXPECT_TRUE(absl::IsNotFound(nonces.Redeem(*nonce).status()));
}

TEST_F(SideListenerTest, RightNonceAttachesItsSession) {
  Start();
  const auto nonce = nonces_.Issue(42);
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendSideMessage(client.get(), Hello(*nonce)).ok());
  AwaitAttached(1);
  const MutexLock lock(&mutex_);
  EXPECT_EQ(attached_[0].first, 42u);
  SideMessage welcome;
  welcome.type = SideType::kWelcome;
  ASSERT_TRUE(SendSideMessage(attached_[0].second.get(), welcome).ok());
  EXPECT_EQ(Receive(client.get())->message.type, SideType::kWelcome);
}

TEST_F(SideListenerTest, WrongNonceIsRejected) {
  Start();
  const auto nonce = nonces_.Issue(1);
  SessionNonce wrong = *nonce;
  wrong[15] ^= 1;
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendSideMessage(client.get(), Hello(wrong)).ok());
  ExpectRejected(client.get(), absl::StatusCode::kNotFound);
  EXPECT_EQ(nonces_.waiting(), 1u);
}

TEST_F(SideListenerTest, ReplayedNonceIsRejectedAndTheFirstJoinStays) {
  Start();
  const auto nonce = nonces_.Issue(1);
  const UniqueFd first = Connect();
  ASSERT_TRUE(SendSideMessage(first.get(), Hello(*nonce)).ok());
  AwaitAttached(1);
  const UniqueFd second = Connect();
  ASSERT_TRUE(SendSideMessage(second.get(), Hello(*nonce)).ok());
  ExpectRejected(second.get(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::IsUnavailable(ReceiveSideMessage(first.get()).status()));  // still open
}

TEST_F(SideListenerTest, SilentConnectionIsClosed) {
  Start({.hello_timeout = absl::Milliseconds(20)});
  const UniqueFd client = Connect();
  ExpectRejected(client.get(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SideListenerTest, OldestSilentConnectionGivesWayToNewcomers) {
  Start({.hello_timeout = absl::Hours(1), .max_pending = 2});
  const UniqueFd first = Connect();
  const UniqueFd second = Connect();
  const UniqueFd third = Connect();
  ExpectRejected(first.get(), absl::StatusCode::kResourceExhausted);
  const auto nonce = nonces_.Issue(5);
  ASSERT_TRUE(SendSideMessage(second.get(), Hello(*nonce)).ok());
  AwaitAttached(1);
}

TEST_F(SideListenerTest, GarbageAndOtherMessagesAreRejected) {
  Start();
  const UniqueFd garbage = Connect();
  ASSERT_EQ(send(garbage.get(), "hello", 5, 0), 5);
  ExpectRejected(garbage.get(), absl::StatusCode::kInvalidArgument);
  const UniqueFd other = Connect();
  SideMessage message;
  message.type = SideType::kSegmentUnmapped;
  ASSERT_TRUE(SendSideMessage(other.get(), message).ok());
  ExpectRejected(other.get(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SideListenerTest, FailedAttachIsAnsweredWithItsCode) {
  Start();
  {
    const MutexLock lock(&mutex_);
    attach_status_ = absl::FailedPreconditionError("already joined");
  }
  const auto nonce = nonces_.Issue(1);
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendSideMessage(client.get(), Hello(*nonce)).ok());
  ExpectRejected(client.get(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SideListenerTest, DescriptorsOfRefusedConnectionsAreClosed) {
  Start();
  const size_t before = OpenFdCount();
  for (int round = 0; round < 50; ++round) {
    const UniqueFd client = Connect();
    const UniqueFd smuggled(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const std::vector<int> fds(8, smuggled.get());
    ASSERT_TRUE(SendSideMessage(client.get(), Hello({}), fds).ok());
    ExpectRejected(client.get(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(OpenFdCount(), before);
}

TEST_F(SideListenerTest, StopClosesWhatIsPending) {
  Start({.hello_timeout = absl::Hours(1)});
  const UniqueFd client = Connect();
  const UniqueFd witness = Connect();  // once it is served, the first was accepted
  ASSERT_TRUE(SendSideMessage(witness.get(), Hello({})).ok());
  ExpectRejected(witness.get(), absl::StatusCode::kNotFound);
  side_->Stop();
  EXPECT_TRUE(absl::IsFailedPrecondition(Receive(client.get()).status()));
}

}  // namespace
}  // namespace sluice::weightd
