// The CPU as a second device: it computes while the device does, its results are the same to the bit, and no
// early end leaves a lease behind.
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"
#include "pack/pack.h"
#include "tests/support/calibration_sink.h"
#include "tests/support/delayed/delayed_backend.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

// The CPU computes misses unless weightd's DRAM lacks them, as the link is very slow.
TestEngineOptions OnBoth(const std::string& pack_dir) {
  TestEngineOptions options;
  options.engine.device = DeviceKind::kSim;
  options.engine.context = 128;
  options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
  options.engine.weightd_grace = absl::Seconds(60);
  options.engine.prefetch = false;
  options.engine.slab.budget = (*Pack::Open(pack_dir))->total_expert_bytes() / 2;
  options.engine.slab.link_gbps = 1e-6;
  options.engine.policies.policy = {"cache=static", "expert_miss=cpu"};
  return options;
}

uint64_t CpuExperts(const Engine& engine) {
  uint64_t experts = 0;
  for (const LayerStats& layer : engine.Layers()) experts += layer.cpu;
  return experts;
}

struct Model {
  const char* name;
  const char* bits = "bf16";
  const char* sparsity = "";
};

class TwoDevicesTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    pack_ = dir_.File("pack");
    TinyModelSpec spec;
    spec.experts = 8;
    spec.layers = 3;
    const std::string family = GetParam().name;
    const absl::Status packed = family == "tiny"
                                    ? PackTiny(spec, dir_.File("model"), pack_, GetParam().bits)
                                    : PackFolder("tests/data/tiny/" + family, pack_, GetParam().bits);
    ASSERT_TRUE(packed.ok()) << packed;
    options_ = OnBoth(pack_);
    if (*GetParam().sparsity != 0) {
      options_.engine.policies.sparsity = GetParam().sparsity;
      options_.engine.policies.sparsity_threshold = 0.05;
    }
  }

  TempDir dir_;
  std::string pack_;
  TestEngineOptions options_;
};

TEST_P(TwoDevicesTest, ResultsEqualTheDeviceAlone) {
  TestEngineOptions alone = options_;
  alone.engine.policies.policy = {"cache=static"};
  alone.engine.slab.link_gbps = 0;
  const absl::StatusOr<TestEngine> device = StartEngine(pack_, alone);
  ASSERT_TRUE(device.ok()) << device.status();
  const std::vector<int32_t> text = {5, 6, 7, 1, 2, 3, 9, 8, 11, 4};
  const auto wanted = ScoreLogits(device->engine.get(), "s", text);
  const auto answer = GenerateIds(device->engine.get(), GreedySpec("g", text, 20));
  ASSERT_TRUE(wanted.ok() && answer.ok()) << wanted.status() << answer.status();
  uint64_t kept = 0;
  for (const LayerSparsity& layer : device->engine->Sparsity()) kept += layer.kept;
  for (const uint64_t seed : {0, 1, 2}) {
    options_.delay_seed = seed;
    options_.threads = static_cast<uint32_t>(seed);
    options_.engine.slab.transport = seed == 1 ? Transport::kPull : Transport::kPush;
    options_.engine.slab.link_gbps = seed == 1 ? 1e-2 : 1e-6;  // a puller respects it
    options_.engine.policies.policy.back() = seed == 2 ? "expert_miss=balance" : "expert_miss=cpu";
    const absl::StatusOr<TestEngine> both = StartEngine(pack_, options_);
    ASSERT_TRUE(both.ok()) << both.status();
    const auto logits = ScoreLogits(both->engine.get(), "s", text);
    ASSERT_TRUE(logits.ok()) << logits.status();
    EXPECT_EQ(*logits, *wanted) << "seed " << seed;
    const auto ids = GenerateIds(both->engine.get(), GreedySpec("g", text, 20));
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, *answer) << "seed " << seed;
    const EngineStats stats = AwaitQuiet(*both->engine);
    EXPECT_GT(CpuExperts(*both->engine), 0u) << "seed " << seed;
    EXPECT_EQ(stats.expert_leases_held, 0u);
    EXPECT_EQ(both->client->violation(), "");
    uint64_t counted = 0;
    for (const LayerSparsity& layer : both->engine->Sparsity()) counted += layer.kept;
    if (seed == 0) {  // an asynchronous device shows the host the counts of one of the two devices only
      EXPECT_EQ(counted, kept) << "neurons that counted";
    }
  }
}

// Models with shared experts, biases, inputs scaled by the router, parallel dense FFNs, skipped neurons.
std::vector<Model> Models() {
#ifdef __SANITIZE_THREAD__
  return {{"tiny", "bf16", "gate"}};  // its threads cover all models
#else
  return {{"tiny"},
          {"tiny", "q4"},
          {"tiny", "bf16", "gate"},
          {"tiny", "bf16", "up"},
          {"gpt_oss"},
          {"llama4"},
          {"deepseek_v3", "q8"},
          {"gemma4"},
          {"nemotron_h_latent"},
          {"longcat_flash"},
          {"step3p5"}};
#endif
}
INSTANTIATE_TEST_SUITE_P(Models, TwoDevicesTest, testing::ValuesIn(Models()), [](const auto& info) {
  return absl::StrCat(info.param.name, "_", info.param.bits, info.param.sparsity);
});

// Makes the experts of both devices wait for each other in every layer, once enabled: neither begins after
// the other has ended. A device may have several calls in a layer.
class Meeting {
 public:
  void Begin() {
    MutexLock lock(&mutex_);
    on_ = true;
  }
  void NextLayer() {
    MutexLock lock(&mutex_);
    ++layer_;
  }
  void Meet(bool device) {
    MutexLock lock(&mutex_);
    if (!on_) return;
    const uint64_t layer = layer_;
    (device ? device_ : cpu_) = layer;
    const uint64_t& other = device ? cpu_ : device_;
    changed_.SignalAll();
    const absl::Time end = SteadyNow() + absl::Seconds(10);
    while (other < layer && SteadyNow() < end) {
      changed_.WaitFor(&mutex_, std::chrono::seconds(1));
    }
    calls_.insert({layer, device, other < layer});
  }
  // Returns, for layers in which both had experts, the number in which they met, and the number in which one
  // had ended before the other began. Layers with all experts on one device do not count.
  std::pair<int, int> met_and_missed() {
    MutexLock lock(&mutex_);
    std::pair<int, int> count;
    const auto calls = calls_;  // Clang's analysis does not treat a lambda as the lock's holder
    for (uint64_t layer = 0; layer <= layer_; ++layer) {
      const auto was = [&](bool device, bool alone) { return calls.contains({layer, device, alone}); };
      if ((was(false, false) || was(false, true)) && (was(true, false) || was(true, true))) {
        ++(was(false, true) || was(true, true) ? count.second : count.first);
      }
    }
    return count;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool on_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t layer_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t device_ ABSL_GUARDED_BY(mutex_) = 0;  // the device's last layer
  uint64_t cpu_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::tuple<uint64_t, bool, bool>> calls_ ABSL_GUARDED_BY(mutex_);  // layer, device, alone
};

class MeetingBackend final : public ReferenceBackend {
 public:
  MeetingBackend(const BackendLimits& limits, Meeting* meeting, bool device)
      : ReferenceBackend(limits), meeting_(meeting), device_(device) {}
  absl::Status Enqueue(const Operation& operation) override {
    if (std::holds_alternative<const RouterArgs*>(operation)) {
      meeting_->NextLayer();
    } else if (std::holds_alternative<const MoeExpertsArgs*>(operation)) {
      meeting_->Meet(device_);
    }
    return ReferenceBackend::Enqueue(operation);
  }

 private:
  Meeting* const meeting_;
  const bool device_;
};

class TwoThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    pack_ = dir_.File("pack");
    TinyModelSpec spec;
    spec.experts = 8;
    spec.top_k = 8;  // every layer has resident and missing experts
    spec.layers = 2;
    ASSERT_TRUE(PackTiny(spec, dir_.File("model"), pack_).ok());
    options_ = OnBoth(pack_);
  }

  // `delayed`: an asynchronous device.
  absl::StatusOr<std::unique_ptr<Engine>> Start(bool delayed) {
    ASSIGN_OR_RETURN(std::unique_ptr<FakeWeightClient> client,
                     FakeWeightClient::Open(pack_, options_.weights));
    client_ = client.get();
    meeting_ = std::make_unique<Meeting>();
    const auto places = [this, delayed](const DeviceNeeds& needed) -> absl::StatusOr<ComputeDevices> {
      EXPECT_TRUE(needed.cpu_parallel);
      ComputeDevices made{std::make_unique<MeetingBackend>(needed.limits, meeting_.get(), true),
                          std::make_unique<MeetingBackend>(needed.limits, meeting_.get(), false)};
      if (delayed) {
        made.device = std::make_unique<DelayedBackend>(std::move(made.device), needed.limits, DelayOptions{});
      }
      return made;
    };
    return Engine::Create(options_.engine, std::move(client), places, nullptr);
  }

  TempDir dir_;
  std::string pack_;
  TestEngineOptions options_;
  std::unique_ptr<Meeting> meeting_;  // shared with the last engine's devices
  FakeWeightClient* client_ = nullptr;
};

TEST_F(TwoThreadsTest, TheCpuComputesWhileTheDeviceDoes) {
  for (const bool delayed : {false, true}) {
    const auto engine = Start(delayed);
    ASSERT_TRUE(engine.ok()) << engine.status();
    // Missing experts are in weightd's DRAM after this.
    const auto first = GenerateIds(engine->get(), GreedySpec("a", {5, 6, 7}, 4));
    ASSERT_TRUE(first.ok()) << first.status();
    AwaitQuiet(**engine);
    meeting_->Begin();
    const auto second = GenerateIds(engine->get(), GreedySpec("b", {5, 6, 7}, 4));
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(*second, *first);
    const auto [met, missed] = meeting_->met_and_missed();
    EXPECT_EQ(missed, 0);
    EXPECT_GE(met, 2);
  }
}

TEST_F(TwoThreadsTest, WeightdLossDuringCpuWorkLeavesNoLease) {
  const absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
  ASSERT_TRUE(test.ok()) << test.status();
  const auto wanted = GenerateIds(test->engine.get(), GreedySpec("w", {5, 6, 7}, 6));
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  for (uint64_t round = 0; round < 20; ++round) {
    test->client->DisconnectAfterPolls(3 * round + 1);
    const auto ids = GenerateIds(test->engine.get(), GreedySpec("g", {5, 6, 7}, 6));
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, *wanted) << round;
  }
  EXPECT_GT(AwaitQuiet(*test->engine).weightd_reconnects, 5u);
  EXPECT_EQ(test->client->counters().held_leases, 0u);
  EXPECT_EQ(test->client->violation(), "");
}

// A backend that fails at its first expert.
class BrokenBackend final : public ReferenceBackend {
 public:
  explicit BrokenBackend(const BackendLimits& limits, uint32_t after)
      : ReferenceBackend(limits), left_(after) {}
  absl::Status Enqueue(const Operation& operation) override {
    if (std::holds_alternative<const MoeExpertsArgs*>(operation) && left_-- == 0) {
      left_ = 0;
      return absl::InternalError("the CPU has failed");
    }
    return ReferenceBackend::Enqueue(operation);
  }

 private:
  uint32_t left_;
};

TEST_F(TwoThreadsTest, CpuErrorEndsTheStepWithItsMessage) {
  auto client = FakeWeightClient::Open(pack_, options_.weights);
  ASSERT_TRUE(client.ok()) << client.status();
  FakeWeightClient* const fake = client->get();
  const auto places = [](const DeviceNeeds& needed) -> absl::StatusOr<ComputeDevices> {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> device, CreateReferenceBackend(needed.limits));
    return ComputeDevices{std::move(device), std::make_unique<BrokenBackend>(needed.limits, /*after=*/40)};
  };
  const auto engine = Engine::Create(options_.engine, *std::move(client), places, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto ids = GenerateIds(engine->get(), GreedySpec("g", {5, 6, 7}, 60));
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("the CPU has failed"));
  EXPECT_EQ(AwaitQuiet(**engine).expert_leases_held, 0u);
  EXPECT_EQ(fake->counters().held_leases, 0u);
}

TEST_F(TwoThreadsTest, CalibrationComputesOnTheDeviceAlone) {
  const absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
  ASSERT_TRUE(test.ok()) << test.status();
  ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("w", {5, 6, 7}, 6)).ok());
  AwaitQuiet(*test->engine);
  const uint64_t before = CpuExperts(*test->engine);
  EXPECT_GT(before, 0u);
  CalibrationSpec spec;
  spec.window = 16;
  for (int i = 0; i < 60; ++i) spec.tokens.push_back((7 * i * i + 3 * i) % 40);
  spec.sensitivity_tokens = 20;
  spec.epochs = 1;
  spec.sparsity_tokens = 30;
  auto sink = std::make_shared<CollectingCalibrationSink>();
  ASSERT_TRUE(test->engine->Calibrate(spec, sink).ok());
  EXPECT_TRUE(sink->Await().ok()) << sink->Await();
  AwaitQuiet(*test->engine);
  EXPECT_EQ(CpuExperts(*test->engine), before);
}

}  // namespace
}  // namespace sluice::inferd
