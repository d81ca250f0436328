// SessionWeightClient against a WeightdServer in the same process: sockets, descriptors and shared memory are
// the real ones.
#include "inferd/session/session_weight_client.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/fd_count.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "weightd/daemon/weightd_server.h"

namespace sluice {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

class SessionWeightClientTest : public testing::Test {
 protected:
  void StartServer(uint64_t budget, std::vector<std::string> packs = {}) {
    WeightdOptions options;
    options.socket = folder_.File("weightd.sock");
    options.packs = packs.empty() ? std::vector<std::string>{pack_.dir()} : packs;
    options.dram_budget = budget;
    options.reader_threads = 2;
    auto server = WeightdServer::Start(options, {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StartServer() { StartServer(64 << 20); }

  std::unique_ptr<SessionWeightClient> Connect(const std::string& pack_dir = "") {
    SessionWeightClientOptions options = Options();
    options.pack_dir = pack_dir.empty() ? pack_.dir() : pack_dir;
    auto client = SessionWeightClient::Connect(options, Soon());
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  SessionWeightClientOptions Options() {
    SessionWeightClientOptions options;
    options.socket = folder_.File("weightd.sock");
    options.pack_dir = pack_.dir();
    return options;
  }

  // Leases an extent, fetching it if need be, and compares it with the disk.
  void ExpectRight(WeightClient* client, uint32_t extent, const TestPack& pack) {
    ExtentLease lease;
    if (!client->TryLease(extent, &lease)) {
      ASSERT_TRUE(client->Submit(ExtentRequest(++next_id_, extent)).ok());
      bool leased = false;
      const auto done = Await(
          client, next_id_, [&](const FetchCompletion&) { leased = client->TryLease(extent, &lease); },
          [this] { PollIdle(); });
      ASSERT_TRUE(done.ok()) << done.status();
      ASSERT_TRUE(leased) << "extent " << extent << ", code " << static_cast<int>(done->code);
    }
    EXPECT_TRUE(pack.Matches(extent, lease)) << pack.pack().ExtentName(extent);
    client->Release(extent, ++step_);
  }

  // The smallest budget that the test's pack works with.
  uint64_t LeastBudget() const {
    return pack_.pack().dense_bytes() + 2 * pack_.pack().largest_expert_bytes();
  }

  // An engine without work still hears of segments that weightd wants back; so does the idle client here.
  void PollIdle() {
    if (idle_ != nullptr) {
      idle_->Poll([](const FetchCompletion&) {});
    }
  }

  TempDir folder_;
  TestPack pack_;
  std::unique_ptr<WeightdServer> server_;
  uint64_t next_id_ = 0;
  uint64_t step_ = 0;
  WeightClient* idle_ = nullptr;
};

class RecordingObserver : public SegmentObserver {
 public:
  absl::Status OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) override {
    EXPECT_NE(base, nullptr);
    EXPECT_GT(bytes, 0u);
    EXPECT_TRUE(mapped.insert(segment).second);
    return status;
  }
  void OnSegmentUnmapped(uint32_t segment) override { EXPECT_EQ(mapped.erase(segment), 1u); }

  std::set<uint32_t> mapped;
  absl::Status status;
};

TEST_F(SessionWeightClientTest, WholeExpertIsFilledByOneRequestAndReadsAsOnDisk) {
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
  const StoreStats stats = server_->store().Look(&StoreCore::Stats);
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
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.at(0).held_extents, 1u);
  client->Release(0, 1);
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.at(0).held_extents, 1u);
  client->Release(0, 1);
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.at(0).held_extents, 0u);
  EXPECT_EQ(client->counters().lease_misses, 1u);
  EXPECT_FALSE(client->TryLease(pack_.pack().extent_count(), &lease));
}

TEST_F(SessionWeightClientTest, FetchWhileEverythingIsHeldEndsResourceExhausted) {
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

TEST_F(SessionWeightClientTest, HeldBellRingsOnceForAllAndWhenItIsLetGo) {
  StartServer();
  const auto client = Connect();
  uint64_t id = 0;
  uint64_t rung = client->bells();
  const absl::Time end = Soon();
  do {  // until weightd slept when a request came
    {
      const OneBell outer(client.get());
      const OneBell inner(client.get());
      rung = client->bells();
      ++id;
      ASSERT_TRUE(client->Submit(ExpertRequest(id, 0, id % 8)).ok());
      EXPECT_EQ(client->bells(), rung);
    }
    EXPECT_LE(client->bells(), rung + 1);
    EXPECT_TRUE(Await(client.get(), id).ok());
  } while (client->bells() == rung && absl::Now() < end);
  EXPECT_EQ(client->bells(), rung + 1);
}

TEST_F(SessionWeightClientTest, WaitingRingsABellThatIsHeld) {
  StartServer();
  const auto client = Connect();
  const OneBell bell(client.get());
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
    ASSERT_TRUE(client->Wait(ended.size() < submitted ? Soon() : absl::Now()).ok());
  }
  EXPECT_EQ(client->counters().outstanding, 0u);
  EXPECT_TRUE(client->Submit(ExpertRequest(99, 1, 1)).ok());
  EXPECT_TRUE(Await(client.get(), 99).ok());
}

TEST_F(SessionWeightClientTest, PrefetchesEndCancelledOrDoneAfterTheirLayerIsPast) {
  StartServer();
  const auto client = Connect();
  std::map<uint64_t, absl::StatusCode> ended;
  uint64_t id = 0;
  for (uint32_t layer = 0; layer < 4; ++layer) {
    for (uint32_t expert = 0; expert < 8; ++expert) {
      ASSERT_TRUE(client->Submit(ExpertRequest(++id, layer, expert, FetchClass::kPrefetch, 5)).ok());
    }
  }
  client->CancelPrefetches(5, 3);
  while (ended.size() < id) {
    client->Poll([&](const FetchCompletion& c) { ended[c.id] = c.code; });
    ASSERT_TRUE(client->Wait(ended.size() < id ? Soon() : absl::Now()).ok());
  }
  size_t cancelled = 0;
  for (const auto& [ignored, code] : ended) {
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled)
        << static_cast<int>(code);
    cancelled += code == absl::StatusCode::kCancelled ? 1 : 0;
  }
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).cancelled, cancelled);
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
  EXPECT_TRUE(client->Wait(absl::Now()).ok());
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

TEST_F(SessionWeightClientTest, MoreThreadsThanTheBudgetHoldsAreRefusedWithNumbers) {
  StartServer(LeastBudget());
  SessionWeightClientOptions options = Options();
  options.compute_threads = 2;
  const auto client = SessionWeightClient::Connect(options, Soon());
  EXPECT_TRUE(absl::IsResourceExhausted(client.status())) << client.status();
  EXPECT_NE(client.status().message().find(std::to_string(LeastBudget())), absl::string_view::npos);
}

TEST_F(SessionWeightClientTest, ClosedClientLeavesNoSessionAndNoDescriptors) {
  StartServer();
  const auto visit = [this] {
    const auto client = Connect();
    for (uint32_t extent = 0; extent < 20; ++extent) ExpectRight(client.get(), extent, pack_);
  };
  visit();  // the segments' descriptors stay
  const size_t before = OpenFdCount();
  for (int i = 0; i < 20; ++i) visit();
  // The server's ends of the last connections are closed by threads of gRPC's: they follow soon.
  const absl::Time deadline = Soon();
  while ((OpenFdCount() > before || !server_->store().Look(&StoreCore::Stats).sessions.empty()) &&
         absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_LE(OpenFdCount(), before);
  EXPECT_TRUE(server_->store().Look(&StoreCore::Stats).sessions.empty());
}

TEST_F(SessionWeightClientTest, StoppedServerIsNoticedAndHeldLeasesStayReadable) {
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

TEST_F(SessionWeightClientTest, ReconnectToTheSameWeightdLeavesNoLostSessionBehind) {
  StartServer();
  const auto client = Connect();
  ExpectRight(client.get(), 4, pack_);
  for (uint64_t round = 1; round <= 3; ++round) {
    server_->store().Control(&StoreCore::OnConnectionLost,
                             server_->store().Look(&StoreCore::Stats).sessions.at(0).session);
    EXPECT_TRUE(absl::IsUnavailable(client->Wait(Soon())));
    EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.at(0).state, "lost");
    ASSERT_TRUE(client->Reconnect(Soon()).ok());
    EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.size(), 1u)
        << "its reserve would be counted twice";
    EXPECT_EQ(client->counters().reconnects, round);
    ExpectRight(client.get(), 4, pack_);
  }
}

TEST_F(SessionWeightClientTest, ReconnectTellsTheObserverOfTheDeadAndTheNewSegments) {
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
  const uint64_t bytes_read = server_->store().Look(&StoreCore::Stats).bytes_read;
  const auto client = Connect();
  for (uint32_t extent = 0; extent < pack_.pack().extent_count(); ++extent) {
    ExtentLease lease;
    ASSERT_TRUE(client->TryLease(extent, &lease));
    EXPECT_TRUE(pack_.Matches(extent, lease));
    client->Release(extent, 1);
  }
  EXPECT_EQ(server_->store().Look(&StoreCore::Stats).bytes_read, bytes_read);
}

TEST_F(SessionWeightClientTest, NobodyListeningIsUnavailableAtTheDeadline) {
  const auto client = SessionWeightClient::Connect(Options(), absl::Now() + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
}

TEST_F(SessionWeightClientTest, DescriptionNamesSocketAndEpoch) {
  StartServer();
  const auto client = Connect();
  const std::string text = client->Describe();
  EXPECT_NE(text.find(folder_.File("weightd.sock")), std::string::npos) << text;
  EXPECT_NE(text.find("epoch"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
