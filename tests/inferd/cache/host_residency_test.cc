// Experts in weightd's DRAM: prefetches after a layer's router has run.
#include "inferd/cache/host_residency.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/engine_testing.h"
#include "tests/support/fakes/fake_weight_client.h"
#include "tests/support/test_pack.h"

namespace sluice::inferd {
namespace {

class HostResidencyTest : public testing::Test {
 protected:
  HostResidencyTest()
      : client_(*FakeWeightClient::Open(pack_.dir(), {.prefetches_begin_at_once = true})),
        backend_(*CreateReferenceBackend({})),
        fetches_(client_.get(), backend_.get(), &clock_),
        segments_(backend_.get()),
        residency_({}, client_.get(), &fetches_, &segments_, &backend_->queue()) {
    EXPECT_TRUE(client_->SetSegmentObserver(&segments_).ok());
  }
  ~HostResidencyTest() override {
    residency_.Abandon();
    EXPECT_TRUE(client_->SetSegmentObserver(nullptr).ok());  // destroyed before the client
  }

  // Computes nothing; every demand arrives.
  void RunLayer(uint32_t layer, const std::vector<ExpertDemand>& demands) {
    ASSERT_TRUE(residency_.BeginLayer({layer, demands}).ok());
    for (size_t done = 0; done < demands.size();) {
      const auto ready = residency_.Next();
      ASSERT_TRUE(ready.ok()) << ready.status();
      ASSERT_FALSE(ready->empty());
      done += ready->size();
    }
    const auto rest = residency_.Next();
    ASSERT_TRUE(rest.ok()) << rest.status();
    ASSERT_TRUE(rest->empty());
  }

  const TestPack pack_;
  MonotonicClock clock_;
  std::unique_ptr<FakeWeightClient> client_;
  std::unique_ptr<Backend> backend_;
  FetchQueue fetches_;
  SegmentBuffers segments_;
  HostResidency residency_;
};

TEST_F(HostResidencyTest, DisprovedPrefetchIsCancelled) {
  residency_.BeginStep({.number = 1});
  residency_.Prefetch(1, 2);
  residency_.Prefetch(1, 3);
  residency_.Prefetch(2, 4);
  RunLayer(1, {{3, 1}, {5, 1}});
  EXPECT_FALSE(residency_.IsResident(1, 2)) << "cancelled";
  EXPECT_TRUE(residency_.IsResident(1, 3) && residency_.IsResident(1, 5));
  EXPECT_TRUE(residency_.IsResident(2, 4)) << "of a layer that is still to come";
  EXPECT_EQ(client_->violation(), "");
  EXPECT_EQ(fetches_.outstanding(), 0u);
}

TEST_F(HostResidencyTest, ExpertIsPrefetchedAgainInTheNextStep) {
  residency_.BeginStep({.number = 1});
  residency_.Prefetch(1, 2);
  RunLayer(1, {{3, 1}});
  residency_.BeginStep({.number = 2});
  residency_.Prefetch(1, 2);
  RunLayer(1, {{2, 1}});
  EXPECT_TRUE(residency_.IsResident(1, 2));
  EXPECT_EQ(client_->counters().prefetch_requests, 2u);
  EXPECT_EQ(client_->counters().demand_requests, 2u);
}

TEST_F(HostResidencyTest, FinishedLayerIsPrefetchedForTheNextStep) {
  residency_.BeginStep({.number = 1});
  RunLayer(0, {{3, 1}});
  RunLayer(1, {{3, 1}});
  residency_.Prefetch(0, 2);
  EXPECT_TRUE(residency_.IsComing(0, 2));
  residency_.Prefetch(0, 2);
  EXPECT_EQ(client_->counters().prefetch_requests, 1u) << "it was asked for already";
  residency_.BeginStep({.number = 2});
  residency_.Poll();
  RunLayer(0, {{2, 1}});
  EXPECT_EQ(residency_.stats().total.prefetch_useful, 1u);
  EXPECT_EQ(client_->counters().demand_requests, 2u) << "those of step 1";
}

}  // namespace
}  // namespace sluice::inferd
