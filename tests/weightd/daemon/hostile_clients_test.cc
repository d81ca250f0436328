// Clients of weightd that violate the protocol: the session ends, no other is harmed.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <random>
#include <string>

#include "tests/support/fd_count.h"
#include "tests/weightd/daemon/weights_service_testing.h"

namespace sluice::weightd {
namespace {

TEST_F(WeightsServiceTest, GarbageInTheRingEndsThatSessionOnly) {
  const auto honest = Connect();
  std::mt19937_64 random(9);
  for (int round = 0; round < 50; ++round) {
    v1::OpenSessionResponse opened;
    ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
    const auto hostile = RawClient::Join(opened);
    ASSERT_NE(hostile, nullptr);
    auto* words = reinterpret_cast<uint64_t*>(hostile->view().submissions);
    for (size_t i = 0; i < 16 * sizeof(SubmissionEntry) / 8; ++i) words[i] = random();
    hostile->view().cursors->submission_tail.value.store(1 + random() % 16);
    hostile->Ring();
    EXPECT_TRUE(hostile->AwaitEnd());
  }
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions_lost, 50u);
  inferd::ExtentLease lease;
  ASSERT_TRUE(FetchAndLease(honest.get(), 1, 7, &lease).ok());
  EXPECT_TRUE(pack_.Matches(7, lease));
  honest->Release(7, 1);
}

TEST_F(WeightsServiceTest, ImpossibleCursorsEndTheSession) {
  const auto break_it = [this](auto&& how) {
    v1::OpenSessionResponse opened;
    ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
    const auto hostile = RawClient::Join(opened);
    ASSERT_NE(hostile, nullptr);
    how(*hostile);
    hostile->Ring();
    EXPECT_TRUE(hostile->AwaitEnd());
  };
  break_it([](RawClient& c) { c.view().cursors->submission_tail.value.store(1u << 30); });
  break_it([](RawClient& c) { c.view().cursors->submission_tail.value.store(~uint64_t{0}); });
  break_it([](RawClient& c) {
    SubmissionWriter writer(c.view());
    SubmissionEntry nop{};
    nop.id = 1;
    nop.extent = kNoExtent;
    nop.slab = kNoSlab;
    nop.progress = kNoProgress;
    ASSERT_EQ(writer.Push(nop), RingResult::kOk);
    c.view().cursors->completion_head.value.store(7);  // more than there ever were
  });
  ExpectServes();
}

TEST_F(WeightsServiceTest, ScribblingHarmsNoOtherSession) {
  const auto honest = Connect();
  std::mt19937_64 random(10);
  for (int round = 0; round < 10; ++round) {
    v1::OpenSessionResponse opened;
    ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
    const auto hostile = RawClient::Join(opened);
    ASSERT_NE(hostile, nullptr);
    for (size_t i = 0; i < opened.control_bytes() / 8; ++i) {
      reinterpret_cast<uint64_t*>(hostile->control())[i] = random();
    }
    for (size_t i = 0; i < PinsBytes(opened.packs(0).extent_count()) / 8; ++i) {
      reinterpret_cast<uint64_t*>(hostile->pins())[i] = random();
    }
    hostile->Ring();
    EXPECT_TRUE(hostile->AwaitEnd());
  }
  for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
    inferd::ExtentLease lease;
    ASSERT_TRUE(FetchAndLease(honest.get(), extent + 1, extent, &lease).ok());
    EXPECT_TRUE(pack_.Matches(extent, lease));
    honest->Release(extent, extent);
  }
}

TEST_F(WeightsServiceTest, GarbageOnTheSideSocketEndsTheSession) {
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
  const auto hostile = RawClient::Join(opened);
  ASSERT_NE(hostile, nullptr);
  ASSERT_EQ(send(hostile->side(), "garbage", 7, 0), 7);
  EXPECT_TRUE(hostile->AwaitEnd());
  ExpectServes();
}

TEST_F(WeightsServiceTest, SharedRegionsAreSealed) {
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
  const auto side = ConnectUnix(opened.side_socket(), UnixSocketType::kSeqPacket);
  SideMessage hello;
  std::copy(opened.nonce().begin(), opened.nonce().end(), hello.nonce.begin());
  ASSERT_TRUE(SendSideMessage(side->get(), hello).ok());
  pollfd polled{side->get(), POLLIN, 0};
  poll(&polled, 1, 20'000);
  const auto welcome = ReceiveSideMessage(side->get());
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  for (const size_t index : {WelcomeFds::kControl, WelcomeFds::Residency(0), WelcomeFds::Pins(0)}) {
    const int fd = welcome->fds[index].get();
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_NE(ftruncate(fd, 1 << 30), 0);
  }
  const uint64_t bytes = ResidencyBytes(pack_.pack().extent_count());
  EXPECT_FALSE(MapSharedMemory(welcome->fds[WelcomeFds::Residency(0)].get(), bytes, true, false).ok());
  EXPECT_TRUE(MapSharedMemory(welcome->fds[WelcomeFds::Residency(0)].get(), bytes, false, false).ok());
}

TEST_F(WeightsServiceTest, HostileSessionsLeaveNoDescriptorsBehind) {
  const auto visit = [this] {
    v1::OpenSessionResponse opened;
    ASSERT_TRUE(Open(GoodRequest(), &opened).ok());
    const auto hostile = RawClient::Join(opened);
    ASSERT_NE(hostile, nullptr);
    hostile->view().cursors->submission_tail.value.store(1u << 30);
    hostile->Ring();
    EXPECT_TRUE(hostile->AwaitEnd());
  };
  visit();
  AwaitSessions(0);
  const size_t before = OpenFdCount();
  for (int i = 0; i < 20; ++i) visit();
  AwaitSessions(0);
  EXPECT_LE(OpenFdCount(), before);
}

}  // namespace
}  // namespace sluice::weightd
