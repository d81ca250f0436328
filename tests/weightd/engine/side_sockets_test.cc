// Messages to and from one client over a socket pair, without a core.
#include "weightd/engine/side_sockets.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "tests/support/fakes/fake_extent_source.h"

namespace sluice::weightd {
namespace {

class SideSocketsTest : public ::testing::Test {
 protected:
  SideSocketsTest() : poller_(*Poller::Create()) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    client_.reset(ends[0]);
    Session::Options options;
    options.id = sessions_.NewId();
    options.packs = {SessionPackPlan{0, &source_, ends[0]}};  // any descriptor does for a table
    session_ = sessions_.Add(*Session::Create(std::move(options)));
    EXPECT_TRUE(side_.Join(session_, UniqueFd(ends[1])).ok());
    EXPECT_EQ(Received()->message.type, SideType::kWelcome);
  }
  absl::StatusOr<SidePacket> Received() { return ReceiveSideMessage(client_.get()); }
  void Send(uint32_t segment) {
    SideMessage message = side_.Message(SideType::kSegmentRetired, *session_);
    message.segment = segment;
    side_.Send(session_, message, nullptr);
  }

  StoreLog log_;
  SessionTable sessions_{&log_};
  Poller poller_;
  ExtentStore store_;
  SideSockets side_{/*boot_epoch=*/77, &poller_, &store_, &sessions_};
  FakeExtentSource source_{{}};
  UniqueFd client_;
  Session* session_ = nullptr;
};

TEST_F(SideSocketsTest, MessagesNameTheSessionAndTheLifeOfWeightd) {
  EXPECT_EQ(session_->state, SessionState::kActive);
  Send(5);
  const auto packet = Received();
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->message.session, session_->id());
  EXPECT_EQ(packet->message.boot_epoch, 77u);
  EXPECT_EQ(packet->message.segment, 5u);
}

TEST_F(SideSocketsTest, FullSocketDelaysMessagesAndKeepsTheirOrder) {
  uint32_t sent = 0;
  while (session_->out.empty() && sent < 100'000) {
    Send(sent++);
  }
  ASSERT_FALSE(session_->out.empty()) << "no socket takes everything";
  Send(sent++);
  CompletionEntry completion{};
  completion.id = 9;
  session_->Deliver(completion, {}, store_);
  EXPECT_EQ(session_->view().cursors->completion_tail.value.load(), 0u)
      << "it must not overtake the segments' messages";
  for (uint32_t segment = 0; segment < sent; ++segment) {
    auto packet = Received();
    if (absl::IsUnavailable(packet.status())) {
      side_.Flush(session_);
      packet = Received();
    }
    ASSERT_TRUE(packet.ok()) << packet.status();
    ASSERT_EQ(packet->message.segment, segment);
  }
  EXPECT_TRUE(session_->out.empty());
  EXPECT_EQ(session_->view().cursors->completion_tail.value.load(), 1u);
}

TEST_F(SideSocketsTest, ClosedSocketEndsTheSessionAsLost) {
  EXPECT_FALSE(side_.Receive(session_).has_value());
  EXPECT_TRUE(sessions_.TakeMarked().empty()) << "it only had nothing to say";
  client_.reset();
  EXPECT_FALSE(side_.Receive(session_).has_value());
  const auto marked = sessions_.TakeMarked();
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_FALSE(marked[0].misbehaved);
}

TEST_F(SideSocketsTest, InvalidMessageEndsItAsMisbehaving) {
  ASSERT_EQ(send(client_.get(), "what", 4, 0), 4);
  EXPECT_FALSE(side_.Receive(session_).has_value());
  sessions_.MarkForClose(session_->id(), false, "a second reason");
  const auto marked = sessions_.TakeMarked();
  ASSERT_EQ(marked.size(), 1u) << "once a round";
  EXPECT_TRUE(marked[0].misbehaved);
  EXPECT_EQ(log_.Take().size(), 1u);
}

}  // namespace
}  // namespace sluice::weightd
