// SessionWeightClient's fetches, leases, segments and refusals.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "tests/inferd/session/session_client_testing.h"

namespace sluice::inferd {
namespace {

TEST_F(SessionWeightClientTest, OneRequestFillsAWholeExpertAsOnDisk) {
  StartServer();
  const auto client = Connect();
  ASSERT_TRUE(client->Submit(ExpertRequest(7, 2, 5)).ok());
  const auto completion = Await(client.get(), 7);
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(completion->code, absl::StatusCode::kOk);
  EXPECT_EQ(completion->bytes, pack_.pack().expert_bytes(2, 5));
  const ExtentRange range = pack_.pack().expert_extents(2, 5);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    ExtentLease lease;
    ASSERT_TRUE(client->TryLease(i, &lease));
    EXPECT_TRUE(pack_.Matches(i, lease));
    client->Release(i, 1);
  }
  EXPECT_EQ(client->counters().held_leases, 0u);
  EXPECT_EQ(client->counters().outstanding, 0u);
  EXPECT_EQ(client->counters().bytes_ssd, completion->bytes);
}

TEST_F(SessionWeightClientTest, EveryExtentReadsAsOnDisk) {
  StartServer();
  const auto client = Connect();
  for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
    ExpectRight(client.get(), extent, pack_);
  }
}

TEST_F(SessionWeightClientTest, SmallestBudgetEvictsAndStillReadsAsOnDisk) {
  StartServer(LeastBudget());
  const auto client = Connect();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    ExpectRight(client.get(), random() % pack_.pack().extent_count(), pack_);
  }
  const weightd::StoreStats stats = server_->store().Look(&weightd::StoreCore::Stats);
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_LE(stats.segment_bytes, LeastBudget());
}

TEST_F(SessionWeightClientTest, ResidentExtentIsLeasedWithoutARequest) {
  StartServer();
  const auto first = Connect();
  ExpectRight(first.get(), 3, pack_);
  const auto second = Connect();
  ExtentLease lease;
  ASSERT_TRUE(second->IsResident(3));
  ASSERT_TRUE(second->TryLease(3, &lease));
  EXPECT_TRUE(pack_.Matches(3, lease));
  second->Release(3, 1);
  EXPECT_EQ(second->counters().demand_requests, 0u);
}

TEST_F(SessionWeightClientTest, LeasesNestAndAreCounted) {
  StartServer();
  const auto client = Connect();
  ExtentLease lease;
  EXPECT_FALSE(client->TryLease(0, &lease));
  ASSERT_TRUE(FetchAndLease(client.get(), 1, 0, &lease).ok());
  ASSERT_TRUE(client->TryLease(0, &lease));
  EXPECT_EQ(client->counters().held_leases, 2u);
  EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).sessions.at(0).held_extents, 1u);
  client->Release(0, 1);
  EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).sessions.at(0).held_extents, 1u);
  client->Release(0, 1);
  EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).sessions.at(0).held_extents, 0u);
  EXPECT_EQ(client->counters().lease_misses, 1u);
  EXPECT_FALSE(client->TryLease(pack_.pack().extent_count(), &lease));
}

TEST_F(SessionWeightClientTest, FetchIsRefusedWhileEverythingIsHeld) {
  StartServer(LeastBudget());
  const auto client = Connect();
  std::vector<uint32_t> held;
  absl::Status status;
  for (uint32_t extent = 0; extent < pack_.pack().extent_count() && status.ok(); ++extent) {
    ExtentLease lease;
    status = FetchAndLease(client.get(), extent + 1, extent, &lease);
    if (status.ok()) held.push_back(extent);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const uint32_t extent : held) client->Release(extent, 1);
  ExpectRight(client.get(), static_cast<uint32_t>(held.size()), pack_);
}

TEST_F(SessionWeightClientTest, BatchRingsTheDoorbellOnce) {
  StartServer();
  const auto client = Connect();
  uint64_t id = 0;
  uint64_t woken = client->wakeups();
  const absl::Time end = Soon();
  do {  // until weightd slept at a request
    {
      const BatchSubmit outer(client.get());
      const BatchSubmit inner(client.get());
      woken = client->wakeups();
      ++id;
      ASSERT_TRUE(client->Submit(ExpertRequest(id, 0, id % 8)).ok());
      EXPECT_EQ(client->wakeups(), woken);
    }
    EXPECT_LE(client->wakeups(), woken + 1);
    EXPECT_TRUE(Await(client.get(), id).ok());
  } while (client->wakeups() == woken && SteadyNow() < end);
  EXPECT_EQ(client->wakeups(), woken + 1);
}

TEST_F(SessionWeightClientTest, WaitRingsTheDoorbellOfABatch) {
  StartServer();
  const auto client = Connect();
  const BatchSubmit batch_submit(client.get());
  for (uint64_t id = 1; id <= 8; ++id) {
    ASSERT_TRUE(client->Submit(ExpertRequest(id, 0, id % 8)).ok());
    EXPECT_TRUE(Await(client.get(), id).ok()) << id;
  }
}

TEST_F(SessionWeightClientTest, FullRingRefusesAndRecovers) {
  StartServer();
  SessionWeightClientOptions options = Options();
  options.layout.ring_entries = 16;
  const auto client = *SessionWeightClient::Connect(options, Soon());
  uint64_t submitted = 0;
  absl::Status status;
  while (status.ok()) {
    ASSERT_LE(submitted, 16u);
    status = client->Submit(ExpertRequest(submitted + 1, 0, submitted % 8));
    submitted += status.ok() ? 1 : 0;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(client->counters().outstanding, submitted);
  std::set<uint64_t> ended;
  while (ended.size() < submitted) {
    client->Poll([&](const FetchCompletion& c) {
      EXPECT_EQ(c.code, absl::StatusCode::kOk);
      ended.insert(c.id);
    });
    ASSERT_TRUE(client->Wait(ended.size() < submitted ? Soon() : SteadyNow()).ok());
  }
  EXPECT_EQ(client->counters().outstanding, 0u);
  EXPECT_TRUE(client->Submit(ExpertRequest(99, 1, 1)).ok());
  EXPECT_TRUE(Await(client.get(), 99).ok());
}

TEST_F(SessionWeightClientTest, PrefetchesEndAfterTheirLayerIsPast) {
  StartServer();
  const auto client = Connect();
  std::map<uint64_t, absl::StatusCode> ended;
  uint64_t id = 0;
  for (uint32_t layer = 0; layer < 4; ++layer) {
    for (uint32_t expert = 0; expert < 8; ++expert) {
      ASSERT_TRUE(client->Submit(ExpertRequest(++id, layer, expert, RequestClass::kPrefetch, 5)).ok());
    }
  }
  client->CancelPrefetches(5, 3);
  while (ended.size() < id) {
    client->Poll([&](const FetchCompletion& c) { ended[c.id] = c.code; });
    ASSERT_TRUE(client->Wait(ended.size() < id ? Soon() : SteadyNow()).ok());
  }
  size_t cancelled = 0;
  for (const auto& [ignored, code] : ended) {
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled)
        << static_cast<int>(code);
    cancelled += code == absl::StatusCode::kCancelled ? 1 : 0;
  }
  EXPECT_EQ(server_->store().Look(&weightd::StoreCore::Stats).cancelled, cancelled);
  EXPECT_EQ(client->counters().outstanding, 0u);
}

TEST_F(SessionWeightClientTest, DamagedExtentEndsDataLossNamingIt) {
  const uint32_t damaged = pack_.pack().expert_extents(1, 3).first + 1;
  pack_.Damage(damaged);
  StartServer();
  const auto client = Connect();
  ASSERT_TRUE(client->Submit(ExpertRequest(1, 1, 3)).ok());
  const auto completion = Await(client.get(), 1);
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(completion->code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(completion->extent, damaged);
  ExtentLease lease;
  EXPECT_FALSE(client->TryLease(damaged, &lease));
  ExpectRight(client.get(), pack_.pack().expert_extents(1, 4).first, pack_);
}

TEST_F(SessionWeightClientTest, WakeEndsAWaitBeforeOrDuringIt) {
  StartServer();
  const auto client = Connect();
  client->Wake();
  ASSERT_TRUE(client->Wait(absl::InfiniteFuture()).ok());
  std::thread waker([&client] { client->Wake(); });
  EXPECT_TRUE(client->Wait(absl::InfiniteFuture()).ok());
  waker.join();
  EXPECT_TRUE(client->Wait(SteadyNow()).ok());
}

TEST_F(SessionWeightClientTest, SpinningWaitSeesCompletionsToo) {
  StartServer();
  SessionWeightClientOptions options = Options();
  options.spin = absl::Microseconds(50);
  const auto client = *SessionWeightClient::Connect(options, Soon());
  for (uint32_t extent = 0; extent < 20; ++extent) ExpectRight(client.get(), extent, pack_);
}

TEST_F(SessionWeightClientTest, ObserverSeesEachSegmentOnceAndItsEnd) {
  StartServer();
  RecordingObserver observer;
  {
    const auto client = Connect();
    ExpectRight(client.get(), 0, pack_);
    ASSERT_TRUE(client->SetSegmentObserver(&observer).ok());
    EXPECT_FALSE(observer.mapped.empty());
    for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
      ExtentLease lease;
      if (!client->TryLease(extent, &lease)) {
        ASSERT_TRUE(FetchAndLease(client.get(), extent + 1, extent, &lease).ok());
      }
      EXPECT_TRUE(observer.mapped.contains(lease.segment));
      client->Release(extent, 1);
    }
  }
  EXPECT_TRUE(observer.mapped.empty());
}

TEST_F(SessionWeightClientTest, ObserverThatFailsEndsTheSession) {
  StartServer();
  RecordingObserver observer;
  const auto client = Connect();
  observer.status = absl::InternalError("import failed");
  ASSERT_TRUE(client->SetSegmentObserver(&observer).ok());
  ExtentLease lease;
  EXPECT_FALSE(FetchAndLease(client.get(), 2, 0, &lease).ok());
  EXPECT_FALSE(client->connected());
  EXPECT_NE(client->lost().message().find("import failed"), absl::string_view::npos) << client->lost();
}

TEST_F(SessionWeightClientTest, TwoClientsOfOnePackReadWhatEitherFilled) {
  StartServer(2 * LeastBudget());
  const auto first = Connect();
  const auto second = Connect();
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    idle_ = (i % 2 == 0 ? second : first).get();
    ExpectRight((i % 2 == 0 ? first : second).get(), random() % pack_.pack().extent_count(), pack_);
  }
}

TEST_F(SessionWeightClientTest, TwoClientsOnThreadsOfTheirOwnShareABudget) {
  StartServer(2 * LeastBudget());
  const auto work = [this](uint64_t seed) {
    const auto client = Connect();
    std::mt19937 random(seed);
    for (uint64_t i = 1; i <= 1000; ++i) {
      const uint32_t extent = random() % pack_.pack().extent_count();
      ExtentLease lease;
      if (!client->TryLease(extent, &lease)) {
        const absl::Status status = FetchAndLease(client.get(), i, extent, &lease);
        ASSERT_TRUE(status.ok()) << status;
      }
      ASSERT_TRUE(pack_.Matches(extent, lease));
      client->Release(extent, i);
    }
  };
  std::thread other(work, 3);
  work(4);
  other.join();
}

TEST_F(SessionWeightClientTest, ClientsOfDifferentPacksDoNotMixThem) {
  const TestPack other(77);
  StartServer(2 * LeastBudget(), {pack_.dir(), other.dir()});
  const auto first = Connect();
  const auto second = Connect(other.dir());
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    const uint32_t extent = random() % pack_.pack().extent_count();
    idle_ = second.get();
    ExpectRight(first.get(), extent, pack_);
    idle_ = first.get();
    ExpectRight(second.get(), extent, other);
  }
}

TEST_F(SessionWeightClientTest, UnknownPackIsRefusedNamingWhatIsServed) {
  const TestPack other(78);
  StartServer();
  SessionWeightClientOptions options = Options();
  options.pack_dir = other.dir();
  const auto client = SessionWeightClient::Connect(options, Soon());
  EXPECT_TRUE(absl::IsNotFound(client.status())) << client.status();
  EXPECT_NE(client.status().message().find(pack_.dir()), absl::string_view::npos) << client.status();
}

TEST_F(SessionWeightClientTest, TooManyThreadsForTheBudgetAreRefused) {
  StartServer(LeastBudget());
  SessionWeightClientOptions options = Options();
  options.compute_threads = 2;
  const auto client = SessionWeightClient::Connect(options, Soon());
  EXPECT_TRUE(absl::IsResourceExhausted(client.status())) << client.status();
  EXPECT_NE(client.status().message().find(std::to_string(LeastBudget())), absl::string_view::npos);
}

TEST_F(SessionWeightClientTest, DescriptionNamesSocketAndEpoch) {
  StartServer();
  const auto client = Connect();
  const std::string text = client->Describe();
  EXPECT_NE(text.find(folder_.File("weightd.sock")), std::string::npos) << text;
  EXPECT_NE(text.find("epoch"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::inferd
