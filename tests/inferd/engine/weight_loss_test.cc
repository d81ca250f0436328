// weightd dies, returns, has damaged data or no room: the engine never computes a wrong token and always
// ends.
#include <fstream>
#include <numeric>
#include <random>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

// Runs on a synchronous and on an asynchronous device.
class WeightLossTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    TinyModelSpec spec;
    spec.experts = 8;
    spec.layers = 3;
    pack_ = dir_.File("pack");
    const absl::Status status = PackTiny(spec, dir_.File("model"), pack_);
    ASSERT_TRUE(status.ok()) << status;
    options_.engine.context = 256;
    options_.delay_seed = GetParam();
    options_.weights.dram_budget = SmallestBudget(pack_, 1);
  }

  void Start() {
    absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = std::move(*test);
  }
  Engine& engine() { return *test_.engine; }

  void AwaitHealth(bool healthy) {
    while (engine().Health().ok() != healthy) {
      std::this_thread::yield();
    }
  }

  // Flips one bit of an extent's first byte, on disk.
  void Damage(uint32_t extent) {
    const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
    const ExtentEntry& entry = pack->extents()[extent];
    std::fstream file(pack->file_path(static_cast<PackFile>(entry.file)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(entry.offset));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

  TempDir dir_;
  std::string pack_;
  TestEngineOptions options_;
  TestEngine test_;
};

TEST_P(WeightLossTest, ARestartInMidAnswerChangesNoToken) {
  Start();
  const GenerateSpec spec = GreedySpec("w", {5, 6, 7}, 60);
  const absl::StatusOr<std::vector<int32_t>> wanted = GenerateIds(&engine(), spec);
  ASSERT_TRUE(wanted.ok());
  for (int round = 0; round < 12; ++round) {
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine().Generate(spec, sink).ok());
    test_.client->DisconnectAfterPolls(11 * round + 1);
    ASSERT_TRUE(sink->Await().ok()) << sink->Await();
    EXPECT_EQ(sink->ids(), *wanted);
    AwaitHealth(true);
  }
  EXPECT_GT(AwaitQuiet(engine()).weightd_reconnects, 6u);
  EXPECT_EQ(test_.client->violation(), "");
}

TEST_P(WeightLossTest, LongLossEndsRequestsThenServiceReturns) {
  options_.engine.weightd_grace = absl::Milliseconds(150);
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {5, 6, 7}, 200), sink).ok());
  sink->AwaitTokens(3);
  test_.client->AllowReconnect(false);
  test_.client->Disconnect();
  const absl::Status status = sink->Await();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), "WEIGHTD_LOST");
  const absl::Status health = engine().Health();
  EXPECT_TRUE(absl::IsUnavailable(health));
  EXPECT_THAT(std::string(health.message()), HasSubstr("weightd"));
  const absl::Status refused =
      engine().Generate(GreedySpec("b", {5, 6, 7}, 5), std::make_shared<CollectingSink>());
  EXPECT_EQ(ReasonOf(refused), "WEIGHTD_LOST");
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held + stats.dense_leases_held, 0u);
  test_.client->AllowReconnect(true);
  AwaitHealth(true);
  EXPECT_TRUE(GenerateIds(&engine(), GreedySpec("c", {5, 6, 7}, 5)).ok());
  EXPECT_EQ(test_.client->violation(), "");
}

TEST_P(WeightLossTest, AnySessionErrorIsALossAndRecovers) {
  Start();
  const GenerateSpec spec = GreedySpec("w", {5, 6, 7}, 100);
  const absl::StatusOr<std::vector<int32_t>> wanted = GenerateIds(&engine(), spec);
  ASSERT_TRUE(wanted.ok());
  for (const absl::StatusCode code : {absl::StatusCode::kInternal, absl::StatusCode::kDeadlineExceeded,
                                      absl::StatusCode::kResourceExhausted}) {
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine().Generate(spec, sink).ok());
    sink->AwaitTokens(3);
    test_.client->AllowReconnect(false, code);
    test_.client->Disconnect(code);
    AwaitHealth(false);
    test_.client->AllowReconnect(true);
    ASSERT_TRUE(sink->Await().ok()) << sink->Await();
    EXPECT_EQ(sink->ids(), *wanted);
    AwaitHealth(true);
  }
}

TEST_P(WeightLossTest, ALossWhileIdleIsNoticedAndRepaired) {
  Start();
  const absl::StatusOr<std::vector<int32_t>> wanted = GenerateIds(&engine(), GreedySpec("a", {5, 6, 7}, 10));
  test_.client->AllowReconnect(false);
  test_.client->Disconnect();
  AwaitHealth(false);
  test_.client->AllowReconnect(true);
  AwaitHealth(true);
  EXPECT_EQ(*GenerateIds(&engine(), GreedySpec("b", {5, 6, 7}, 10)), *wanted);
}

TEST_P(WeightLossTest, RequestsCanBeCancelledWhileWeightdIsAway) {
  options_.engine.weightd_grace = absl::Seconds(60);
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {5, 6, 7}, 200), sink).ok());
  test_.client->AllowReconnect(false);
  test_.client->Disconnect();
  AwaitHealth(false);
  ASSERT_TRUE(engine().Cancel("a").ok() || sink->ended());
  EXPECT_FALSE(sink->Await().ok());
  GenerateSpec spec = GreedySpec("b", {5, 6, 7}, 200);
  spec.deadline = SteadyNow() + absl::Milliseconds(20);
  auto late = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(spec, late).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Await()));
}

TEST_P(WeightLossTest, ADamagedExpertEndsOnlyTheSequencesRoutedToIt) {
  options_.weights.dram_budget = ~uint64_t{0};
  options_.engine.parallel = 8;
  Start();
  std::vector<std::vector<int32_t>> wanted;
  for (int token = 0; token < 40; ++token) {
    wanted.push_back(*GenerateIds(&engine(), GreedySpec("w", {token}, 2)));
  }
  test_.engine.reset();
  const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
  const uint32_t extent = pack->expert_extents(1, 3).first + 2;
  Damage(extent);
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int token = 0; token < 40; ++token) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine().Generate(GreedySpec(absl::StrCat("a", token), {token}, 2), sinks.back()).ok());
  }
  int damaged = 0;
  for (int token = 0; token < 40; ++token) {
    const absl::Status status = sinks[token]->Await();
    if (status.ok()) {
      EXPECT_EQ(sinks[token]->ids(), wanted[token]);
      continue;
    }
    ++damaged;
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(ReasonOf(status), "WEIGHT_CORRUPT");
    EXPECT_THAT(std::string(status.message()), HasSubstr(pack->ExtentName(extent)));
    const std::vector<int32_t> ids = sinks[token]->ids();
    EXPECT_EQ(ids, std::vector<int32_t>(wanted[token].begin(), wanted[token].begin() + ids.size()));
  }
  EXPECT_GT(damaged, 0);
  EXPECT_LT(damaged, 40);
  EXPECT_TRUE(engine().Health().ok());
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held, 0u);
  EXPECT_EQ(stats.requests_failed, static_cast<uint64_t>(damaged));
}

// A wrong draft may need the damaged expert where its sequence does not.
TEST_P(WeightLossTest, DamageMetByDraftsAloneEndsNoRequest) {
  options_.weights.dram_budget = ~uint64_t{0};
  options_.engine.parallel = 8;
  const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
  Damage(pack->expert_extents(1, 3).first + 2);
  std::vector<std::vector<int32_t>> ids[2];
  std::vector<absl::StatusCode> ends[2];
  uint64_t steps[2] = {};  // and tokens that saved one
  for (const int drafting : {0, 1}) {
    options_.engine.speculate = drafting == 1 ? SpeculateMode::kAuto : SpeculateMode::kOff;
    options_.engine.drafts = 8;
    Start();
    for (int token = 4; token < 64; ++token) {
      GenerateSpec spec = GreedySpec(absl::StrCat("a", token), {token, 5}, 4 + token % 9);
      spec.sampling.temperature = 1.0f;
      spec.sampling.seed = token;
      for (int32_t id = 4; id < 7; ++id) {
        spec.sampling.logit_bias.emplace_back(id, 20.0f);  // few words, so that pairs of them come again
      }
      auto sink = std::make_shared<CollectingSink>();
      ASSERT_TRUE(engine().Generate(spec, sink).ok());
      ends[drafting].push_back(sink->Await().code());
      ids[drafting].push_back(sink->ids());
    }
    const EngineStats stats = AwaitQuiet(engine());
    steps[drafting] =
        std::accumulate(stats.drafts_accepted.begin(), stats.drafts_accepted.end(), stats.steps);
    EXPECT_EQ(stats.expert_leases_held, 0u);
  }
  EXPECT_NE(std::count(ends[0].begin(), ends[0].end(), absl::StatusCode::kOk), 0);
  EXPECT_NE(std::count(ends[0].begin(), ends[0].end(), absl::StatusCode::kDataLoss), 0);
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_EQ(ids[1], ids[0]);
  EXPECT_GT(steps[1], steps[0]) << "no step was repeated without its drafts";
}

TEST_P(WeightLossTest, HungDiskEndsOnlyTheStepsRequests) {
  Start();
  const std::vector<int32_t> wanted = *GenerateIds(&engine(), GreedySpec("w", {3}, 4));
  test_.client->EndDemands(absl::StatusCode::kDeadlineExceeded, 1);
  const absl::Status ended = GenerateIds(&engine(), GreedySpec("a", {3}, 4)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << ended;
  EXPECT_EQ(ReasonOf(ended), "WEIGHTS_LATE");
  EXPECT_TRUE(engine().Health().ok()) << engine().Health();
  EXPECT_EQ(*GenerateIds(&engine(), GreedySpec("b", {3}, 4)), wanted);
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held, 0u);
}

TEST_P(WeightLossTest, DamagedDenseWeightsFailTheStart) {
  Damage(0);
  const absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
  EXPECT_TRUE(absl::IsDataLoss(test.status())) << test.status();
  EXPECT_EQ(ReasonOf(test.status()), "WEIGHT_CORRUPT");
}

TEST_P(WeightLossTest, TooSmallBudgetFailsTheStartWithBytes) {
  options_.weights.dram_budget = 4096;
  options_.engine.stall_limit = absl::Milliseconds(50);
  const absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
  EXPECT_TRUE(absl::IsResourceExhausted(test.status())) << test.status();
  EXPECT_THAT(std::string(test.status().message()),
              HasSubstr(absl::StrCat((*Pack::Open(pack_))->dense_bytes())));
}

TEST_P(WeightLossTest, WithoutRoomAStepEndsWithAnErrorNotAHang) {
  options_.engine.stall_limit = absl::Milliseconds(50);
  Start();
  test_.client->SetBudget((*Pack::Open(pack_))->dense_bytes());  // another session pins the rest
  const absl::StatusOr<std::vector<int32_t>> ids = GenerateIds(&engine(), GreedySpec("a", {5, 6, 7}, 5));
  EXPECT_TRUE(absl::IsResourceExhausted(ids.status())) << ids.status();
  test_.client->SetBudget(options_.weights.dram_budget);
  EXPECT_TRUE(GenerateIds(&engine(), GreedySpec("b", {5, 6, 7}, 5)).ok());
  EXPECT_TRUE(engine().Health().ok());
}

TEST_P(WeightLossTest, ASilentWeightdEndsTheStepNotTheEngine) {
  options_.engine.stall_limit = absl::Milliseconds(50);
  Start();
  test_.client->Freeze(true);
  EXPECT_FALSE(GenerateIds(&engine(), GreedySpec("a", {5, 6, 7}, 5)).ok());
  test_.client->Freeze(false);
  EXPECT_TRUE(GenerateIds(&engine(), GreedySpec("b", {5, 6, 7}, 5)).ok());
  EXPECT_EQ(test_.client->violation(), "");
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightLossTest, testing::Values(0, 11),
                         [](const auto& info) { return info.param == 0 ? "AtTheCall" : "Later"; });

}  // namespace
}  // namespace sluice::inferd
