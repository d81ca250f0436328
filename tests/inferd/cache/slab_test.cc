// Slabs through a WeightClient: the contract of weight_client.h, for a real session with a WeightdServer in
// this process and for the fake of the engine's tests, with both transports over each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "inferd/model/pull_client.h"
#include "inferd/session/session_weight_client.h"
#include "tests/support/fakes/fake_weight_client.h"
#include "tests/support/fakes/test_slab.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "weightd/daemon/weightd_server.h"

namespace sluice::inferd {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSlabBytes = 1 << 20;

struct Client {
  bool session = false;  // else the fake
  bool pull = false;
};

class SlabTest : public testing::TestWithParam<Client> {
 protected:
  void SetUp() override {
    if (GetParam().session) {
      weightd::WeightdOptions options;
      options.preload = false;  // the tests count reads
      options.socket = folder_.File("weightd.sock");
      options.packs = {pack_.dir()};
      options.dram_budget = 64 << 20;
      auto server = weightd::WeightdServer::Start(options, {});
      ASSERT_TRUE(server.ok()) << server.status();
      server_ = *std::move(server);
    }
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
  }

  std::unique_ptr<WeightClient> Connect() {
    std::unique_ptr<WeightClient> client = ConnectPushing();
    if (client != nullptr && GetParam().pull) {
      client = std::make_unique<PullClient>(std::move(client));
    }
    return client;
  }
  std::unique_ptr<WeightClient> ConnectPushing() {
    if (!GetParam().session) {
      auto fake = FakeWeightClient::Open(pack_.dir(), {.max_delay_polls = 2});
      return fake.ok() ? *std::move(fake) : nullptr;
    }
    SessionWeightClientOptions options;
    options.socket = folder_.File("weightd.sock");
    options.pack_dir = pack_.dir();
    auto client = SessionWeightClient::Connect(options, SteadyNow() + absl::Seconds(20));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  uint32_t Offer(const TestSlab& slab, double gbps = 0, double latency_us = 0) {
    auto number = client_->OfferSlab(slab.Offer(gbps, latency_us));
    EXPECT_TRUE(number.ok()) << number.status();
    return number.ok() ? *number : 0;
  }
  FetchRequest Request(uint64_t id, const TransferTarget& target, uint32_t layer, uint32_t expert,
                       PartSet parts = kAllParts, RequestClass request_class = RequestClass::kDemand) {
    FetchRequest request = ExpertRequest(id, layer, expert, request_class);
    request.parts = parts;
    request.transfer = &target;
    return request;
  }
  FetchCompletion Done(uint64_t id) {
    const auto done = Await(client_.get(), id);
    EXPECT_TRUE(done.ok()) << done.status();
    return done.ok() ? *done : FetchCompletion{.code = absl::StatusCode::kUnknown};
  }
  uint64_t RowBytesOf(Part part) const {
    const PartView view = pack_.pack().part(0, 0, part);
    return RowBytes(view.encoding, view.cols);
  }
  uint32_t Width() const { return pack_.pack().part(0, 0, Part::kUp).rows; }

  const TestPack pack_;
  TempDir folder_;
  std::unique_ptr<weightd::WeightdServer> server_;
  std::unique_ptr<WeightClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Clients, SlabTest,
                         testing::Values(Client{true, false}, Client{false, false}, Client{true, true},
                                         Client{false, true}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.session ? "Session" : "Fake",
                                               info.param.pull ? "Pull" : "Push");
                         });

TEST_P(SlabTest, AWholeExpertLandsWithEveryGapBetweenRows) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab);
  uint64_t id = 0;
  for (uint64_t gap : {0, 8, 64, 200}) {
    for (PartSet parts : {PartSet{1}, PartSet{6}, kAllParts}) {
      const TransferTarget target = TestSlab::Target(pack_.pack(), number, 1, 2, parts, 64 * id, gap);
      ASSERT_TRUE(client_->Submit(Request(++id, target, 1, 2, parts)).ok());
      const FetchCompletion done = Done(id);
      EXPECT_EQ(done.code, absl::StatusCode::kOk);
      EXPECT_GE(done.link_bytes, Width() * RowBytesOf(Part::kUp));
      EXPECT_TRUE(slab.Holds(pack_, 1, 2, parts, target)) << "gap " << gap << ", parts " << int{parts};
    }
  }
  EXPECT_GT(client_->counters().bytes_link, 0u);
}

TEST_P(SlabTest, ListedNeuronsLandInOrderAndNothingElse) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab);
  std::vector<uint32_t> neurons;
  for (uint32_t neuron = 1; neuron < Width(); neuron += neuron % 3 == 0 ? 1 : 2) {
    neurons.push_back(neuron);
  }
  TransferTarget target = TestSlab::Target(pack_.pack(), number, 2, 5, 0x6, 4096, 128);
  target.neurons = neurons;
  ASSERT_TRUE(client_->Submit(Request(1, target, 2, 5, 0x6)).ok());
  const FetchCompletion done = Done(1);
  EXPECT_EQ(done.code, absl::StatusCode::kOk);
  const uint64_t bytes = neurons.size() * (RowBytesOf(Part::kGate) + RowBytesOf(Part::kDown));
  EXPECT_EQ(done.link_bytes, bytes);
  EXPECT_TRUE(slab.Holds(pack_, 2, 5, 0x6, target));
  EXPECT_GE(slab.UntouchedBytes(), slab.bytes() - bytes);
}

TEST_P(SlabTest, TilesThatLandedMayBeReadBeforeTheCompletion) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab, /*gbps=*/0.004);
  TransferTarget target = TestSlab::Target(pack_.pack(), number, 0, 3, kAllParts, 0);
  target.tile_neurons = 3;
  ASSERT_TRUE(client_->Submit(Request(9, target, 0, 3)).ok());
  bool done = false;
  uint32_t seen = 0;
  while (!done) {
    const uint32_t landed = client_->LandedTiles(9);
    EXPECT_GE(landed, seen);
    seen = std::max(seen, landed);
    EXPECT_TRUE(slab.Holds(pack_, 0, 3, kAllParts, target, 0, 3 * landed)) << landed << " tiles";
    client_->Poll([&](const FetchCompletion& completion) {
      done = true;
      EXPECT_EQ(completion.code, absl::StatusCode::kOk);
    });
    ASSERT_TRUE(done || client_->Wait(SteadyNow() + absl::Milliseconds(1)).ok());
  }
  EXPECT_EQ(client_->LandedTiles(9), 0u) << "it is over";
  EXPECT_EQ(client_->LandedTiles(8), 0u) << "there is none";
}

TEST_P(SlabTest, CancelledRequestsStillComplete) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab, /*gbps=*/0.001);
  const TransferTarget a = TestSlab::Target(pack_.pack(), number, 0, 0, kAllParts, 0);
  const TransferTarget b = TestSlab::Target(pack_.pack(), number, 0, 1, kAllParts, kSlabBytes / 2);
  ASSERT_TRUE(client_->Submit(Request(1, a, 0, 0, kAllParts, RequestClass::kPrefetch)).ok());
  ASSERT_TRUE(client_->Submit(Request(2, b, 0, 1, kAllParts, RequestClass::kPrefetch)).ok());
  client_->Cancel(2);
  client_->Cancel(77);
  // Both orders are possible on a loaded machine.
  const auto either = testing::AnyOf(absl::StatusCode::kCancelled, absl::StatusCode::kOk);
  EXPECT_THAT(Done(2).code, either);
  client_->Cancel(1);
  while (client_->counters().outstanding != 0) {
    client_->Poll([&](const FetchCompletion& done) { EXPECT_THAT(done.code, either); });
    ASSERT_TRUE(client_->Wait(SteadyNow() + absl::Milliseconds(1)).ok());
  }
}

TEST_P(SlabTest, StalePrefetchesIntoSlabsAreCancelledByStep) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab, /*gbps=*/0.001);
  const TransferTarget a = TestSlab::Target(pack_.pack(), number, 0, 0, kAllParts, 0);
  const TransferTarget b = TestSlab::Target(pack_.pack(), number, 1, 1, kAllParts, kSlabBytes / 2);
  ASSERT_TRUE(client_->Submit(Request(1, a, 0, 0, kAllParts, RequestClass::kPrefetch)).ok());
  ASSERT_TRUE(client_->Submit(Request(2, b, 1, 1, kAllParts, RequestClass::kPrefetch)).ok());
  client_->CancelPrefetches(1, 3);
  size_t ended = 0;
  while (ended < 2) {
    ended += client_->Poll([&](const FetchCompletion& done) {
      EXPECT_THAT(done.code, testing::AnyOf(absl::StatusCode::kCancelled, absl::StatusCode::kOk));
    });
    ASSERT_TRUE(client_->Wait(SteadyNow() + absl::Milliseconds(1)).ok());
  }
}

TEST_P(SlabTest, DemandIsCoalescedWithItsPrefetch) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab, /*gbps=*/0.01);
  const TransferTarget target = TestSlab::Target(pack_.pack(), number, 3, 3, kAllParts, 0);
  ASSERT_TRUE(client_->Submit(Request(1, target, 3, 3, kAllParts, RequestClass::kPrefetch)).ok());
  ASSERT_TRUE(client_->Submit(Request(2, target, 3, 3)).ok());
  size_t ended = 0;
  while (ended < 2) {
    ended += client_->Poll([&](const FetchCompletion& done) {
      EXPECT_EQ(done.code, absl::StatusCode::kOk);
      EXPECT_TRUE(slab.Holds(pack_, 3, 3, kAllParts, target));
    });
    ASSERT_TRUE(client_->Wait(SteadyNow() + absl::Milliseconds(1)).ok());
  }
}

TEST_P(SlabTest, ADenseExtentLandsWhole) {
  TestSlab slab(kSlabBytes);
  const uint32_t number = Offer(slab);
  uint64_t at = 0;
  for (uint32_t extent = 0; extent < pack_.pack().dense_extent_count(); ++extent) {
    TransferTarget target;
    target.slab = number;
    target.base[0] = at;
    FetchRequest request;
    request.id = 100 + extent;
    request.dense_extent = extent;
    request.transfer = &target;
    ASSERT_TRUE(client_->Submit(request).ok());
    const FetchCompletion done = Done(100 + extent);
    EXPECT_EQ(done.code, absl::StatusCode::kOk);
    const uint64_t length = pack_.pack().extents()[extent].length;
    EXPECT_EQ(done.link_bytes, length);
    EXPECT_EQ(std::memcmp(slab.data() + at, pack_.extent(extent).data(), length), 0) << extent;
    at += length;
  }
  ASSERT_GT(at, 0u);
  EXPECT_GE(slab.UntouchedBytes(), kSlabBytes - at) << "nothing else is written";
  EXPECT_EQ(client_->counters().held_leases, 0u);
}

TEST_P(SlabTest, ShrinkableOrWrongSizeFileIsRefused) {
  TestSlab slab(kSlabBytes);
  SlabOffer offer = slab.Offer();
  offer.bytes = kSlabBytes + 4096;
  EXPECT_EQ(client_->OfferSlab(offer).status().code(), absl::StatusCode::kInvalidArgument);
  const UniqueFd loose(memfd_create("loose", MFD_CLOEXEC));
  const std::vector<char> bytes(kSlabBytes, 1);
  ASSERT_EQ(write(loose.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  offer.fd = loose.get();
  offer.bytes = kSlabBytes;
  EXPECT_EQ(client_->OfferSlab(offer).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client_->OfferSlab(slab.Offer()).ok()) << "the session lives on";
}

}  // namespace
}  // namespace sluice::inferd
