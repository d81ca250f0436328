// SessionWeightClient at a session's end: closed, lost, reconnected.
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "tests/inferd/session/session_client_testing.h"
#include "tests/support/fd_count.h"

namespace sluice::inferd {
namespace {

TEST_F(SessionWeightClientTest, ClosedClientLeavesNoSessionAndNoDescriptors) {
  StartServer();
  const auto visit = [this] {
    const auto client = Connect();
    for (uint32_t extent = 0; extent < 20; ++extent) ExpectRight(client.get(), extent, pack_);
  };
  visit();  // the segments' descriptors stay
  const size_t before = OpenFdCount();
  for (int i = 0; i < 20; ++i) visit();
  // The server's ends of the last connections are closed by gRPC's threads shortly after.
  const absl::Time deadline = Soon();
  while ((OpenFdCount() > before || !server_->store().Look(&weightd::StoreCore::Stats).sessions.empty()) &&
         SteadyNow() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_LE(OpenFdCount(), before);
  EXPECT_TRUE(server_->store().Look(&weightd::StoreCore::Stats).sessions.empty());
}

TEST_F(SessionWeightClientTest, HeldLeasesStayReadableAfterServerStops) {
  StartServer();
  const auto client = Connect();
  ExtentLease lease;
  ASSERT_TRUE(FetchAndLease(client.get(), 1, 4, &lease).ok());
  EXPECT_TRUE(client->connected());
  const uint64_t epoch = client->boot_epoch();
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(client->Wait(Soon())));
  EXPECT_FALSE(client->connected());
  EXPECT_TRUE(absl::IsUnavailable(client->Submit(ExtentRequest(2, 5))));
  EXPECT_TRUE(pack_.Matches(4, lease));
  ExtentLease again;
  EXPECT_TRUE(client->TryLease(4, &again));
  EXPECT_FALSE(client->TryLease(5, &again));
  client->Release(4, 1);
  client->Release(4, 1);

  EXPECT_TRUE(absl::IsUnavailable(client->Reconnect(Soon())));
  EXPECT_FALSE(client->connected());
  EXPECT_FALSE(client->TryLease(4, &again));
  EXPECT_TRUE(absl::IsUnavailable(client->Wait(Soon())));

  StartServer();
  ASSERT_TRUE(client->Reconnect(Soon()).ok());
  EXPECT_TRUE(client->connected());
  EXPECT_NE(client->boot_epoch(), epoch);
  EXPECT_EQ(client->counters().reconnects, 1u);
  EXPECT_EQ(client->counters().outstanding, 0u);
  ExpectRight(client.get(), 4, pack_);
}

TEST_F(SessionWeightClientTest, ReconnectLeavesNoLostSessionBehind) {
  StartServer();
  const auto client = Connect();
  ExpectRight(client.get(), 4, pack_);
  for (uint64_t round = 1; round <= 3; ++round) {
    server_->store().Control(&weightd::StoreCore::OnConnectionLost,
                             server_->store().Look(&weightd::StoreCore::Stats).sessions.at(0).session);
    EXPECT_TRUE(absl::IsUnavailable(client->Wait(Soon())));
    EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).sessions.at(0).state, "lost");
    ASSERT_TRUE(client->Reconnect(Soon()).ok());
    EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).sessions.size(), 1u)
        << "its reserve would be counted twice";
    EXPECT_EQ(client->counters().reconnects, round);
    ExpectRight(client.get(), 4, pack_);
  }
}

TEST_F(SessionWeightClientTest, ReconnectReportsDeadAndNewSegments) {
  StartServer();
  RecordingObserver observer;
  const auto client = Connect();
  ASSERT_TRUE(client->SetSegmentObserver(&observer).ok());
  ExpectRight(client.get(), 4, pack_);
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(client->Wait(Soon())));
  EXPECT_FALSE(observer.mapped.empty());
  EXPECT_TRUE(absl::IsUnavailable(client->Reconnect(Soon())));
  EXPECT_TRUE(observer.mapped.empty());
  StartServer();
  ASSERT_TRUE(client->Reconnect(Soon()).ok());
  ExpectRight(client.get(), 4, pack_);
  EXPECT_FALSE(observer.mapped.empty());
}

TEST_F(SessionWeightClientTest, NextSessionFindsTheWeightsWarm) {
  StartServer();
  {
    const auto client = Connect();
    for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
      ExpectRight(client.get(), extent, pack_);
    }
  }
  const uint64_t bytes_read = server_->store().Look(&weightd::StoreCore::Stats).bytes_read;
  const auto client = Connect();
  for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
    ExtentLease lease;
    ASSERT_TRUE(client->TryLease(extent, &lease));
    EXPECT_TRUE(pack_.Matches(extent, lease));
    client->Release(extent, 1);
  }
  EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).bytes_read, bytes_read);
}

TEST_F(SessionWeightClientTest, NobodyListeningIsUnavailableAtTheDeadline) {
  const auto client = SessionWeightClient::Connect(Options(), SteadyNow() + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
}

}  // namespace
}  // namespace sluice::inferd
