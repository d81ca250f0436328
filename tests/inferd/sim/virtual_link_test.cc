#include "inferd/sim/virtual_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "inferd/sim/virtual_clock.h"

namespace sluice::inferd {
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
    return VirtualLink(options, &clock_);
  }
  std::vector<VirtualLink::End> EndsAt(int64_t nanos, VirtualLink* link) {
    clock_.AdvanceTo(nanos);
    link->Advance();
    return link->TakeEnds();
  }
  static std::vector<Ended> Of(const std::vector<VirtualLink::End>& ends) {
    std::vector<Ended> all;
    for (const VirtualLink::End& end : ends) {
      all.push_back({end.number, end.nanos, end.cancelled});
    }
    return all;
  }
  VirtualClock clock_;
};

TEST_F(VirtualLinkTest, ATransferTakesLatencyAndRate) {
  VirtualLink link = Make(1, 5, 1000);
  clock_.AdvanceTo(100);
  link.Submit(1, RequestClass::kDemand, {10'000});
  EXPECT_EQ(link.NextEvent(), 100 + 5000 + 1000);
  const std::vector<VirtualLink::End> ends = EndsAt(1'000'000, &link);
  EXPECT_THAT(Of(ends), ElementsAre(Ended{1, 100 + 5000 + 10'000, false}));
  EXPECT_EQ(ends[0].bytes, 10'000u);
  EXPECT_EQ(ends[0].took_nanos, 5000 + 10'000);
  EXPECT_EQ(link.NextEvent(), -1);
}

TEST_F(VirtualLinkTest, TilesLandOneAfterAnother) {
  VirtualLink link = Make(1, 0, 1000);
  link.Submit(1, RequestClass::kDemand, {2500, 1500});
  for (const auto& [nanos, landed] : {std::pair(2499, 0u), {2500, 1u}, {3999, 1u}, {4000, 2u}}) {
    clock_.AdvanceTo(nanos);
    link.Advance();
    EXPECT_EQ(link.landed(1), landed) << nanos;
  }
  const std::vector<VirtualLink::End> ends = link.TakeEnds();
  EXPECT_THAT(Of(ends), ElementsAre(Ended{1, 4000, false}));
  EXPECT_EQ(ends[0].landed, 2u);
  EXPECT_EQ(link.landed(1), 0u) << "it was taken";
}

TEST_F(VirtualLinkTest, ADemandWaitsForOnePrefetchChunkAtMost) {
  VirtualLink link = Make(1, 0, 1000);
  link.Submit(1, RequestClass::kPrefetch, {100'000});
  clock_.AdvanceTo(500);
  link.Submit(2, RequestClass::kDemand, {3000});
  EXPECT_THAT(Of(EndsAt(1'000'000, &link)),
              ElementsAre(Ended{2, 1000 + 3000, false}, Ended{1, 103'000, false}));
}

TEST_F(VirtualLinkTest, CancelledTransfersChunksInFlightStillArrive) {
  VirtualLink link = Make(1, 0, 1000);
  link.Submit(1, RequestClass::kPrefetch, {100'000});
  link.Submit(2, RequestClass::kPrefetch, {1000});
  clock_.AdvanceTo(1500);
  EXPECT_FALSE(link.CancelIfNotStarted(1));
  link.Cancel(1);
  clock_.AdvanceTo(1600);
  EXPECT_TRUE(link.CancelIfNotStarted(2));
  const std::vector<VirtualLink::End> ends = EndsAt(1'000'000, &link);
  EXPECT_THAT(Of(ends), ElementsAre(Ended{2, 1600, true}, Ended{1, 2000, true}));
  EXPECT_EQ(ends[0].bytes, 0u);
  EXPECT_EQ(ends[1].bytes, 2000u);
}

TEST_F(VirtualLinkTest, EqualCallsGiveEqualTimesToTheBit) {
  std::vector<Ended> first;
  for (int run = 0; run < 2; ++run) {
    std::mt19937_64 random(11);
    const int64_t start = clock_.NowNanos();
    VirtualLink link = Make(7.3, 9, 50'000);
    for (uint64_t number = 1; number <= 2000; ++number) {
      clock_.Advance(static_cast<int64_t>(random() % 40'000));
      const RequestClass request_class = random() % 3 == 0 ? RequestClass::kDemand : RequestClass::kPrefetch;
      link.Submit(number, request_class, {random() % 300'000});
      if (random() % 4 == 0) {
        link.Cancel(1 + random() % number);
      }
    }
    std::vector<Ended> ended = Of(EndsAt(clock_.NowNanos() + 1'000'000'000, &link));
    EXPECT_EQ(ended.size(), 2000u) << "every transfer ends once";
    for (Ended& end : ended) {
      end.nanos -= start;
    }
    if (run == 0) {
      first = ended;
    }
    EXPECT_EQ(first, ended);
  }
}

}  // namespace
}  // namespace sluice::inferd
