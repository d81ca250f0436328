// Polling for tiles that travel into a slab, for a bounded time.
#include <memory>

#include "gtest/gtest.h"
#include "inferd/cache/residency.h"
#include "inferd/cache/slab_residency.h"
#include "inferd/policy/cache_allocation.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

TEST(LandingPollerTest, PollsUntilTheTimeWithoutNewsEnds) {
  LandingPoller watch(/*on=*/true);
  watch.Restart(1000);
  EXPECT_TRUE(watch.ShouldPoll(1000));
  EXPECT_TRUE(watch.ShouldPoll(1000 + LandingPoller::kMaxPollNanos - 1));
  EXPECT_FALSE(watch.ShouldPoll(1000 + LandingPoller::kMaxPollNanos));
  EXPECT_EQ(watch.Take(2000), 1000);
  EXPECT_EQ(watch.Take(3000), 0) << "it was counted";
  watch.Restart(1'000'000);
  EXPECT_TRUE(watch.ShouldPoll(1'000'001));
  EXPECT_EQ(watch.Take(1'000'005), 4);
}

TEST(LandingPollerTest, DoesNotPollInVirtualTime) {
  LandingPoller watch(/*on=*/false);
  watch.Restart(1000);
  EXPECT_FALSE(watch.ShouldPoll(1000));
  EXPECT_EQ(watch.Take(2000), 0);
}

class LandingTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModelSpec model;
    model.layers = 2;
    model.experts = 8;
    model.width = 192;
    ASSERT_TRUE(PackTiny(model, dir_.File("model"), dir_.File("pack")).ok());
    // A tile lands with every few polls, long before the polling time ends.
    client_ = *FakeWeightClient::Open(dir_.File("pack"), {.max_delay_polls = 40});
    options_.allocate = AllocateUniform;
    options_.tile_neurons = 64;
    options_.budget = 8 * client_->pack().largest_expert_bytes();
  }

  // Tiles of a layer of missing experts, as they are handed out.
  uint32_t RunLayer() {
    backend_ = *CreateReferenceBackend({});
    fetches_ = std::make_unique<FetchQueue>(client_.get(), backend_.get(), &clock_);
    auto made = SlabResidency::Create(options_, client_.get(), fetches_.get(), nullptr, backend_.get(),
                                      nullptr, nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
    cache_ = *std::move(made);
    EXPECT_TRUE(cache_->Attach().ok());
    cache_->BeginStep({.number = 1});
    waits_before_ = client_->waits();
    stall_before_ = fetches_->real_stall_nanos();
    uint32_t tiles = 0;
    const ExpertDemand demands[] = {{6, 1}, {7, 1}};
    EXPECT_FALSE(cache_->IsResident(1, 6) || cache_->IsResident(1, 7));
    EXPECT_TRUE(cache_->BeginLayer({1, demands}).ok());
    for (;;) {
      const auto ready = cache_->Next();
      EXPECT_TRUE(ready.ok()) << ready.status();
      if (!ready.ok() || ready->empty()) {
        return tiles;
      }
      tiles += static_cast<uint32_t>(ready->size());
    }
  }

  TempDir dir_;
  std::unique_ptr<FakeWeightClient> client_;
  SlabResidencyOptions options_;
  const MonotonicClock clock_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FetchQueue> fetches_;
  std::unique_ptr<SlabResidency> cache_;
  uint64_t waits_before_ = 0;
  int64_t stall_before_ = 0;
};

TEST_F(LandingTest, TilesAreHandedOutAsTheyLandWithoutASleep) {
  EXPECT_GE(RunLayer(), 4u);
  const uint64_t asleep = client_->waits() - waits_before_;
  EXPECT_GT(asleep, 4u);
  cache_.reset();
  client_ = *FakeWeightClient::Open(dir_.File("pack"), {.max_delay_polls = 40});
  options_.watch = true;
  EXPECT_GE(RunLayer(), 4u);
  // Zero, except on a loaded machine where a poll takes longer than the polling time.
  EXPECT_LT(client_->waits() - waits_before_, asleep);
  EXPECT_GT(fetches_->real_stall_nanos(), stall_before_) << "it waited all the same";
}

TEST_F(LandingTest, LateTileIsAwaitedAsleep) {
  options_.watch = true;
  options_.stall_limit = absl::Milliseconds(50);
  EXPECT_GE(RunLayer(), 4u);
  client_->Freeze(true);
  const ExpertDemand demands[] = {{5, 1}};
  ASSERT_TRUE(cache_->BeginLayer({1, demands}).ok());
  const uint64_t before = client_->waits();
  EXPECT_EQ(cache_->Next().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(client_->waits(), before);
  client_->Freeze(false);
}

}  // namespace
}  // namespace sluice::inferd
