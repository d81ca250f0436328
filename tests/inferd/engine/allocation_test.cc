// Nothing allocates in the step loop: every operator new of the process is counted while sequences decode.
#include <atomic>
#include <cstdlib>
#include <new>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "tests/support/engine_testing.h"

namespace {
std::atomic<uint64_t> allocations{0};

void* Count(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* place = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (place == nullptr) {
    std::abort();  // a test out of memory; operator new may not return null
  }
  return place;
}
}  // namespace

void* operator new(std::size_t bytes) { return Count(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return Count(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Count(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return Count(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete[](void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete[](void* place, std::size_t) noexcept { std::free(place); }
void operator delete(void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete[](void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }
void operator delete[](void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }

namespace sluice::inferd {
namespace {

// Counts and keeps nothing.
class CountingSink final : public RequestSink {
 public:
  void OnStarted(const Usage&, double) override {}
  void OnTokens(absl::Span<const TokenOut> tokens, std::string_view) override { tokens_ += tokens.size(); }
  void OnFinished(const FinishInfo&) override {}
  void OnError(const absl::Status&) override {}
  size_t tokens() const { return tokens_; }

 private:
  size_t tokens_ = 0;
};

struct Case {
  const char* name;
  uint32_t threads;
  bool tight;               // DRAM holds half of the experts
  const char* family = "";  // a family in tests/data/tiny; empty: a Mixtral made here
  bool sim = false;         // on a device that holds half of the experts
  bool neurons = false;     // neuron by neuron, the smaller ones within a budget
  std::string preset = "exact";
};

// Overrides a preset's policies that need a profile.
std::vector<std::string> WithoutProfile(const std::string& preset) {
  const std::string first = "first_layer=off";
  if (preset == "adapmoe") return {first, "score_threshold=0.1"};
  if (preset.starts_with("floe")) return {"sparsity_threshold=0.01", "expert_predictor=gate_reuse"};
  if (preset == "intra") return {"sparsity_threshold=0.001"};
  return {};
}

// True if steady decoding keeps requesting experts.
bool Fetches(const std::string& preset) {
  const absl::StatusOr<Policies> policies =
      PoliciesOf(preset, {.policy = WithoutProfile(preset)}, DeviceKind::kSim);
  return policies.ok() && policies->cache != CacheKind::kResident;
}

// Every preset of this build on the simulated device.
std::vector<Case> PresetCases() {
  std::vector<Case> cases;
  for (const std::string& preset : PresetNames()) {
    const absl::Status there =
        PoliciesOf(preset, {.policy = WithoutProfile(preset)}, DeviceKind::kSim).status();
    if (!absl::IsUnimplemented(there)) {
      cases.push_back({"Sim", 1, false, "", true, false, preset});
    }
  }
  return cases;
}

class AllocationTest : public testing::TestWithParam<Case> {};

TEST_P(AllocationTest, SteadyDecodeAllocatesNothing) {
  TempDir dir;
  TinyModelSpec model;
  model.layers = 3;
  model.experts = 8;
  const std::string family = GetParam().family;
  const absl::Status packed = family.empty() ? PackTiny(model, dir.File("model"), dir.File("pack"))
                                             : PackFolder("tests/data/tiny/" + family, dir.File("pack"));
  ASSERT_TRUE(packed.ok()) << packed;
  absl::StatusOr<std::unique_ptr<FakeWeightClient>> client = FakeWeightClient::Open(dir.File("pack"), {});
  ASSERT_TRUE(client.ok()) << client.status();
  EngineOptions options;
  options.parallel = 4;
  options.prefill_chunk = 16;
  if (GetParam().sim) {
    options.device = DeviceKind::kSim;
    options.slab.budget = (*client)->pack().total_expert_bytes() / 2;
    options.preset = GetParam().preset;
    options.policies.policy = WithoutProfile(GetParam().preset);
  }
  if (GetParam().neurons) {
    options.policies.sparsity = "gate";
    options.policies.sparsity_threshold = 0.2;
    options.policies.policy = {"cache_granularity=neuron", "neuron_miss=budgeted", "neuron_budget_us=10",
                               "cache=none"};
  }
  const absl::StatusOr<EnginePlan> plan = PlanEngine(options, (*client)->pack().config());
  ASSERT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      GetParam().threads == 0 ? CreateReferenceBackend(plan->backend)
                              : CreateCpuBackend(plan->backend, GetParam().threads);
  ASSERT_TRUE(backend.ok()) << backend.status();
  absl::StatusOr<PolicyChoice> choice = ChoosePoliciesFor(options, (*client)->pack());
  ASSERT_TRUE(choice.ok()) << choice.status();
  ComputeDevices places;  // without a CPU beside it the device computes every miss
  places.device = *std::move(backend);
  RequestRegistry registry(options.queue);
  absl::StatusOr<std::unique_ptr<EngineCore>> core =
      EngineCore::Create(*plan, *std::move(choice), client->get(), std::move(places), &registry);
  ASSERT_TRUE(core.ok()) << core.status();

  auto sink = std::make_shared<CountingSink>();
  for (int i = 0; i < 4; ++i) {
    GenerateSpec spec = GreedySpec(absl::StrCat("r", i), {4, 5 + i, 6}, 200);
    spec.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;  // greedy and sampled
    spec.sampling.top_p = 0.9f;
    spec.sampling.repetition_penalty = i == 3 ? 1.1f : 1.0f;
    const absl::StatusOr<SequenceId> id = registry.Enter(spec.request_id, 1, 1);
    ASSERT_TRUE(id.ok());
    (*core)->Add(std::make_unique<GenerateSequence>(*id, spec, sink, SteadyNow(), 5,
                                                    (*client)->pack().config().eos_ids, nullptr));
  }
  const Pack& pack = (*client)->pack();
  if (GetParam().tight) {
    (*client)->SetBudget(pack.dense_bytes() + pack.total_expert_bytes() / 2);
  }
  for (int step = 0; step < 100; ++step) {  // prefill, first touches, full tables
    ASSERT_EQ((*core)->Step(SteadyNow()), EngineCore::Outcome::kRan);
  }
  EXPECT_GT(allocations.load(), 100u) << "the count does not work";
  const size_t tokens_before = sink->tokens();
  const uint64_t fetched_before = (*client)->counters().demand_requests;
  uint64_t worst = 0;
  for (int step = 0; step < 50; ++step) {
    const uint64_t before = allocations.load();
    const EngineCore::Outcome outcome = (*core)->Step(SteadyNow());
    worst = std::max(worst, allocations.load() - before);
    ASSERT_EQ(outcome, EngineCore::Outcome::kRan);
  }
  EXPECT_EQ(sink->tokens() - tokens_before, 4u * 50);
  EXPECT_EQ((*client)->counters().demand_requests > fetched_before,
            GetParam().tight || (GetParam().sim && Fetches(GetParam().preset)));
  EXPECT_EQ(worst, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, AllocationTest,
    testing::Values(Case{"Host", 1, false}, Case{"HostThreads", 2, false}, Case{"HostTight", 1, true},
                    Case{"SimByNeuron", 1, false, "", true, true},
                    Case{"LatentAttention", 2, true, "deepseek_v3"},
                    Case{"GatedDelta", 2, false, "qwen3_5_moe"}, Case{"Mamba", 2, true, "nemotron_h"},
                    Case{"ShortConvolutions", 2, false, "lfm2_moe"}, Case{"NormsAround", 2, true, "gemma4"},
                    Case{"LatentExperts", 2, true, "nemotron_h_latent"},
                    Case{"ExpertsLate", 2, true, "longcat_flash"}, Case{"Selective", 2, false, "jamba"},
                    Case{"ChannelDecay", 1, false, "kimi_linear"},
                    Case{"ParallelBlocks", 2, true, "cohere2_moe"}, Case{"ScaledInputs", 1, true, "llama4"},
                    Case{"SinksAndBiases", 2, false, "gpt_oss"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Presets, AllocationTest, testing::ValuesIn(PresetCases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.preset; });

}  // namespace
}  // namespace sluice::inferd
