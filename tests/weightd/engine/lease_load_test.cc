// Leases under load: clients on threads of their own against a store that evicts meanwhile, and the hit rate
// of LRU, which learns of no hit by message.
//
// Each client runs on its own thread, on mappings shared with the store.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <list>
#include <memory>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/local_client.h"
#include "weightd/engine/weight_store.h"

namespace sluice::weightd {
namespace {

// LRU alone, for the comparison with a replay, unless set otherwise.
std::unique_ptr<WeightStore> CreateStore(uint64_t budget, EvictionKind eviction = EvictionKind::kLru,
                                         bool admission = false, uint64_t scrub_rate = 0) {
  WeightStoreOptions options;
  options.dram_budget = budget;
  options.attach_timeout_ms = 0;
  options.eviction = eviction;
  options.admission = admission;
  options.scrub_rate = scrub_rate;
  auto store =
      WeightStore::Create(options, std::make_unique<FakeBlockReader>(FakeBlockReader::Mode::kImmediate));
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// One lease of an extent, by a request if it is not resident. False: no room.
bool LeaseExtent(LocalClient* client, uint32_t extent, uint64_t* id, uint64_t* place, bool* hit) {
  *hit = client->Lease(extent, place);
  if (*hit) {
    return true;
  }
  EXPECT_EQ(client->Submit(LocalClient::FillExtent(++*id, extent)), RingResult::kOk);
  CompletionEntry done;
  EXPECT_TRUE(client->Await(&done)) << "a lost wake-up";
  const bool leased = done.code == 0 && client->Lease(extent, place);
  EXPECT_TRUE(leased || done.code != 0) << "what was filled is held until it is reaped";
  client->Reap();
  return leased;
}

class EveryPolicyTest : public ::testing::TestWithParam<EvictionKind> {};

TEST_P(EveryPolicyTest, FourClientsSeeOnlyTheirBytesDuringScrub) {
  auto store = CreateStore(24 * 4096, GetParam(), /*admission=*/true, /*scrub_rate=*/64 << 20);
  auto owned = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{.layers = 2, .experts = 16});
  const FakeExtentSource* source = owned.get();
  const uint32_t pack = *store->AddSource(std::move(owned));
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SessionParams params;
    params.packs = {pack};
    auto session = store->Control(&StoreCore::OpenSession, params);
    ASSERT_TRUE(session.ok()) << session.status();
    threads.emplace_back([&store, source, seed, id = session->session] {
      LocalClient client(*store->Look(&StoreCore::Local, id));
      std::mt19937_64 random(seed);
      uint64_t request = 0;
      for (uint64_t i = 0; i < 3000; ++i) {
        const auto extent = static_cast<uint32_t>(random() % source->extent_count());
        uint64_t place = 0;
        bool hit;
        if (!LeaseExtent(&client, extent, &request, &place, &hit)) {
          continue;
        }
        const std::byte* data =
            store->Look(&StoreCore::SegmentData, PlaceSegment(place)) + PlaceOffset(place);
        ASSERT_TRUE(source->BytesAreRight(extent, {data, 4096}));
        client.Release(extent, StepStamp(i + 1, 0));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // The scrub goes on over what is resident; on a busy machine it may not have had its turn yet.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (store->Look(&StoreCore::Stats).scrub_bytes == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  const StoreStats stats = store->Look(&StoreCore::Stats);
  EXPECT_GT(stats.evictions, 100u);
  EXPECT_EQ(stats.in_flight_bytes, 0u);
  EXPECT_EQ(stats.eviction, NameOf(GetParam()));
  EXPECT_GT(stats.scrub_bytes, 0u);
  EXPECT_EQ(stats.scrub_failures, 0u);
  for (const SessionStats& session : stats.sessions) {
    EXPECT_EQ(session.held_extents, 0u);
    EXPECT_EQ(session.outstanding, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(LeaseLoadTest, EveryPolicyTest,
                         ::testing::Values(EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

// LRU of `capacity` extents over the same accesses, with every one of them reported.
class ReplayedLru {
 public:
  explicit ReplayedLru(size_t capacity) : capacity_(capacity) {}
  bool Access(uint32_t extent) {
    auto found = at_.find(extent);
    const bool hit = found != at_.end();
    if (hit) {
      order_.erase(found->second);
    } else if (at_.size() == capacity_) {
      at_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(extent);
    at_[extent] = order_.begin();
    return hit;
  }

 private:
  const size_t capacity_;
  std::list<uint32_t> order_;
  std::unordered_map<uint32_t, std::list<uint32_t>::iterator> at_;
};

// Extents by Zipf's law, shuffled; with s = 0 uniform.
std::vector<uint32_t> Accesses(uint32_t extents, double s, size_t count, uint64_t seed) {
  std::vector<double> weights;
  for (uint32_t i = 0; i < extents; ++i) {
    weights.push_back(1.0 / std::pow(i + 1, s));
  }
  std::mt19937_64 random(seed);
  std::discrete_distribution<uint32_t> draw(weights.begin(), weights.end());
  std::vector<uint32_t> accesses(count);
  for (uint32_t& access : accesses) {
    access = draw(random) * 7919u % extents;
  }
  return accesses;
}

TEST(LeaseLoadTest, LruHitRateIsWithinOnePercentOfAReplay) {
  constexpr size_t kAccesses = 20000;
  for (double s : {0.0, 0.8, 1.2}) {
    for (uint64_t share : {2, 4, 10}) {
      auto owned = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{.layers = 4, .experts = 25});
      const uint32_t extents = owned->extent_count();
      const uint64_t capacity = extents / share;
      auto store = CreateStore(capacity * 4096);
      SessionParams params;
      params.packs = {*store->AddSource(std::move(owned))};
      auto session = store->Control(&StoreCore::OpenSession, params);
      ASSERT_TRUE(session.ok()) << session.status();
      LocalClient client(*store->Look(&StoreCore::Local, session->session));
      ReplayedLru replay(capacity);
      uint64_t request = 0;
      uint64_t step = 0;
      int64_t hits = 0;
      int64_t replayed = 0;
      for (uint32_t extent : Accesses(extents, s, kAccesses, share)) {
        uint64_t place = 0;
        bool hit;
        ASSERT_TRUE(LeaseExtent(&client, extent, &request, &place, &hit));
        // 50 uses a step, as an engine would stamp them.
        ++step;
        client.Release(extent, StepStamp(step / 50 + 1, step % 50));
        hits += hit ? 1 : 0;
        replayed += replay.Access(extent) ? 1 : 0;
      }
      const double rate = 100.0 * static_cast<double>(hits) / kAccesses;
      const double expected = 100.0 * static_cast<double>(replayed) / kAccesses;
      std::printf("zipf %.1f, 1/%d resident: hit rate %.2f %%, replay %.2f %%\n", s, static_cast<int>(share),
                  rate, expected);
      EXPECT_NEAR(rate, expected, 1.0);
    }
  }
}

TEST(LeaseLoadTest, TwoSessionsWithStepsOfTheirOwnStillMakeOneLru) {
  auto owned = std::make_unique<FakeExtentSource>(FakeExtentSource::Shape{.layers = 4, .experts = 25});
  const uint32_t extents = owned->extent_count();
  const uint64_t capacity = extents / 4;
  auto store = CreateStore(capacity * 4096);
  SessionParams params;
  params.packs = {*store->AddSource(std::move(owned))};
  std::vector<std::unique_ptr<LocalClient>> clients;
  for (int i = 0; i < 2; ++i) {
    auto session = store->Control(&StoreCore::OpenSession, params);
    ASSERT_TRUE(session.ok()) << session.status();
    clients.push_back(std::make_unique<LocalClient>(*store->Look(&StoreCore::Local, session->session)));
  }
  ReplayedLru replay(capacity);
  uint64_t request = 0;
  uint64_t steps[2] = {1, 1'000'000'000};  // one has been running for long, with large strides
  int64_t hits = 0;
  int64_t replayed = 0;
  std::mt19937_64 random(9);
  const std::vector<uint32_t> accesses = Accesses(extents, 0.8, 20000, 5);
  for (uint32_t extent : accesses) {
    const size_t who = random() % 3 == 0 ? 1 : 0;
    uint64_t place = 0;
    bool hit;
    ASSERT_TRUE(LeaseExtent(clients[who].get(), extent, &request, &place, &hit));
    steps[who] += who == 1 ? 1000 : 1;
    clients[who]->Release(extent, StepStamp(steps[who], 0));
    hits += hit ? 1 : 0;
    replayed += replay.Access(extent) ? 1 : 0;
  }
  const double rate = 100.0 * static_cast<double>(hits) / static_cast<double>(accesses.size());
  const double expected = 100.0 * static_cast<double>(replayed) / static_cast<double>(accesses.size());
  std::printf("two sessions: hit rate %.2f %%, replay %.2f %%\n", rate, expected);
  EXPECT_NEAR(rate, expected, 1.0);
}

}  // namespace
}  // namespace sluice::weightd
