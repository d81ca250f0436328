#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/protocol/link_model.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

struct Ended {
  uint64_t number;
  int64_t nanos;
  bool cancelled;
  bool operator==(const Ended&) const = default;
};

class VirtualLinkTest : public ::testing::Test {
 protected:
  VirtualLink Make(double gbps, double latency_us, uint64_t chunk) {
    VirtualLink::Options options;
    options.rate = MakeLinkRate(gbps, latency_us);
    options.chunk_bytes = chunk;
    return VirtualLink(options, [this](uint64_t number, int64_t nanos, uint64_t bytes, bool cancelled) {
      ended_.push_back({number, nanos, cancelled});
      ended_bytes_.push_back(bytes);
    });
  }
  std::vector<Ended> ended_;
  std::vector<uint64_t> ended_bytes_;
};

TEST_F(VirtualLinkTest, ATransferTakesLatencyAndRate) {
  VirtualLink link = Make(1, 5, 1000);
  link.Submit(1, RequestClass::kDemand, 10'000, 100);
  EXPECT_EQ(link.NextEvent(), 100 + 5000 + 1000);
  link.AdvanceTo(1'000'000);
  EXPECT_THAT(ended_, ElementsAre(Ended{1, 100 + 5000 + 10'000, false}));
  EXPECT_EQ(link.delivered_bytes(), 10'000u);
  EXPECT_EQ(link.NextEvent(), -1);
}

TEST_F(VirtualLinkTest, ADemandWaitsForOnePrefetchChunkAtMost) {
  VirtualLink link = Make(1, 0, 1000);
  link.Submit(1, RequestClass::kPrefetch, 100'000, 0);
  link.Submit(2, RequestClass::kDemand, 3000, 500);
  link.AdvanceTo(1'000'000);
  EXPECT_THAT(ended_, ElementsAre(Ended{2, 1000 + 3000, false}, Ended{1, 103'000, false}));
}

TEST_F(VirtualLinkTest, CancelledTransfersChunksInFlightStillArrive) {
  VirtualLink link = Make(1, 0, 1000);
  link.Submit(1, RequestClass::kPrefetch, 100'000, 0);
  link.Submit(2, RequestClass::kPrefetch, 1000, 0);
  link.Cancel(1, 1500);
  link.Cancel(2, 1600);
  link.AdvanceTo(1'000'000);
  EXPECT_THAT(ended_, ElementsAre(Ended{2, 1600, true}, Ended{1, 2000, true}));
  EXPECT_THAT(ended_bytes_, ElementsAre(0u, 2000u));
}

TEST_F(VirtualLinkTest, EqualCallsGiveEqualTimesToTheBit) {
  std::vector<Ended> first;
  for (int run = 0; run < 2; ++run) {
    ended_.clear();
    std::mt19937_64 random(11);
    VirtualLink link = Make(7.3, 9, 50'000);
    int64_t now = 0;
    for (uint64_t number = 1; number <= 2000; ++number) {
      now += static_cast<int64_t>(random() % 40'000);
      link.Submit(number, random() % 3 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch,
                  random() % 300'000, now);
      if (random() % 4 == 0) {
        link.Cancel(1 + random() % number, now);
      }
    }
    link.AdvanceTo(now + 1'000'000'000);
    EXPECT_EQ(ended_.size(), 2000u) << "every transfer ends once";
    if (run == 0) {
      first = ended_;
    }
  }
  EXPECT_EQ(first, ended_);
}

}  // namespace
}  // namespace sluice
