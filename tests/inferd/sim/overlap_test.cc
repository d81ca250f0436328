// Overlap of copying and computing in modelled time: links of 25 and 50 GB/s, device memory of 1 and 3.3
// TB/s, the shapes of Mixtral 8x7B and Qwen3-30B-A3B with half of the experts on the device; tokens one by
// one, and prompts in chunks. A step cannot be shorter than its computing, nor shorter than its bytes on the
// link; the time beyond the longer of the two is not overlapped. This is a model: kernels take the time of
// their bytes, and nothing else has a cost.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

constexpr double kMaxBeyond = 1.1;
struct Rates {
  double link_gbps;
  double memory_gbps;
};
constexpr Rates kRates[] = {{25, 1000}, {25, 3300}, {50, 1000}, {50, 3300}};
constexpr uint32_t kPromptTokens = 256;
constexpr uint32_t kChunk = 128;

struct Shape {
  const char* name;
  double hidden;
  double width;
  uint32_t experts;
  uint32_t top_k;
  double heads;
  double kv_heads;
};
constexpr double kHeadDim = 128;
constexpr Shape kShapes[] = {{"Mixtral", 4096, 14336, 8, 2, 32, 8}, {"Qwen3", 2048, 768, 128, 8, 32, 4}};

// Returns the costs of bf16 experts, in milliseconds.
VirtualCosts CostsOf(const Shape& shape, double link_gbps, double memory_gbps) {
  const double expert = 3 * 2 * shape.hidden * shape.width;
  const double attention = 2 * 2 * shape.hidden * kHeadDim * (shape.heads + shape.kv_heads);
  VirtualCosts costs;
  costs.link_ms = expert / link_gbps * 1e-6;
  costs.compute_ms = expert / memory_gbps * 1e-6;
  costs.attention_ms = attention / memory_gbps * 1e-6;
  return costs;
}

class OverlapTest : public testing::TestWithParam<Shape> {
 protected:
  // A tiny model with as many experts as the real one; times are those of the real shape.
  void SetUp() override {
    TinyModelSpec model;
    model.layers = 4;
    model.experts = GetParam().experts;
    model.top_k = GetParam().top_k;
    model.width = 512;  // eight tiles
    const absl::Status packed = PackTiny(model, dir_.File("model"), dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    pack_ = *Pack::Open(dir_.File("pack"));
  }

  Timings Decode(const std::string& preset, uint64_t budget, const VirtualCosts& costs) {
    return Answer(preset, budget, costs, {7}, 24);
  }
  Timings Prompt(const std::string& preset, uint64_t budget, const VirtualCosts& costs) {
    std::vector<int32_t> prompt(kPromptTokens);
    for (uint32_t i = 0; i < kPromptTokens; ++i) {
      prompt[i] = static_cast<int32_t>(3 + i * 7 % 60);
    }
    return Answer(preset, budget, costs, prompt, 1);
  }

  Timings Answer(const std::string& preset, uint64_t budget, const VirtualCosts& costs,
                 const std::vector<int32_t>& prompt, uint32_t tokens) {
    TestEngineOptions options;
    options.engine.device = DeviceKind::kSim;
    options.engine.slab.budget = budget;
    options.threads = 1;  // the reference computes the same, four times as long
    options.engine.virtual_clock = true;
    options.engine.costs = costs;
    options.engine.preset = preset;
    if (prompt.size() > 1) {
      options.engine.prefill_chunk = kChunk;
      options.engine.context = 512;
    }
    if (preset == "floe") {
      options.engine.policies.policy = {"sparsity_threshold=0.5", "expert_predictor=gate_reuse"};
    }
    if (even_) {
      options.engine.policies.policy.push_back("cache_allocation=uniform");
    }
    absl::StatusOr<TestEngine> test = StartEngine(pack_->dir(), options);
    EXPECT_TRUE(test.ok()) << test.status();
    Timings timings;
    for (const uint64_t seed : {1, 2}) {  // weightd has read all it needs the second time
      GenerateSpec spec = GreedySpec("g", prompt, tokens);
      spec.sampling.temperature = 1000;  // tokens at random, so that experts change
      spec.sampling.seed = seed;
      spec.bypass_prefix_cache = true;
      auto sink = std::make_shared<CollectingSink>();
      EXPECT_TRUE(test->engine->Generate(spec, sink).ok());
      EXPECT_TRUE(sink->Await().ok()) << sink->Await();
      timings = sink->info().timings;
    }
    return timings;
  }

  // Returns the time of a run with half of the experts, relative to the longer of its computing and its
  // bytes.
  double Beyond(bool prompt, const std::string& preset, const Rates& rates) {
    const VirtualCosts costs = CostsOf(GetParam(), rates.link_gbps, rates.memory_gbps);
    const Timings resident = prompt ? Prompt(preset, 0, costs) : Decode(preset, 0, costs);
    const uint64_t budget = pack_->total_expert_bytes() / 2;
    const Timings half = prompt ? Prompt(preset, budget, costs) : Decode(preset, budget, costs);
    const double bytes_per_second = static_cast<double>(pack_->expert_bytes(0, 0)) / (costs.link_ms * 1e-3);
    const double bytes = static_cast<double>(half.bytes_link) / bytes_per_second;
    const double compute = resident.prompt_seconds + resident.decode_seconds;
    const double beyond = (half.prompt_seconds + half.decode_seconds) / std::max(compute, bytes);
    std::printf(
        "%s, %s%s, link %g GB/s, memory %g GB/s: %.3f of max(compute %.3g s, bytes %.3g s), %.0f %% hits\n",
        GetParam().name, preset.c_str(), even_ ? " evenly" : "", rates.link_gbps, rates.memory_gbps, beyond,
        compute, bytes,
        100.0 * static_cast<double>(half.expert_hits) / static_cast<double>(half.expert_requests));
    return beyond;
  }

  bool even_ = false;  // every layer keeps the same number of experts, for any preset
  TempDir dir_;
  std::unique_ptr<Pack> pack_;
};

TEST_P(OverlapTest, DecodeIsBoundByComputeOrBytes) {
  for (const Rates& rates : kRates) {
    for (const char* preset : {"exact", "floe"}) {
      const double beyond = Beyond(false, preset, rates);
      EXPECT_LE(beyond, kMaxBeyond) << preset;
      EXPECT_GE(beyond, 0.95) << preset << ": the model forgets something";
    }
  }
}

TEST_P(OverlapTest, PromptIsBoundByComputeOrBytes) {
  for (const Rates& rates : {Rates{25, 3300}, Rates{50, 1000}}) {
    for (const char* preset : {"exact", "floe"}) {
      EXPECT_LE(Beyond(true, preset, rates), kMaxBeyond) << preset;
    }
  }
}

// Many rows per expert, or a slow device: computing takes about as long as the bytes. Resident experts are
// computed while others travel. Floe keeps the first layers whole and nothing of the others: each layer takes
// the longer of its own computing and its own bytes, and no order within a layer overlaps one layer's bytes
// with another's computing.
TEST_P(OverlapTest, PromptWithEqualComputeAndBytes) {
  for (const double memory : {50.0, 100.0}) {
    EXPECT_LE(Beyond(true, "exact", {25, memory}), kMaxBeyond);
    EXPECT_LE(Beyond(true, "floe", {25, memory}), 1.25);
  }
}

// The same by neuron if every layer keeps some. At the slowest device the leads are visible: a layer begins
// with all of them, while transfers are bounded by the free slots.
TEST_P(OverlapTest, PromptByNeuronOverlapsResidentNeurons) {
  even_ = true;
  EXPECT_LE(Beyond(true, "floe", {25, 100}), 1.04);
  EXPECT_LE(Beyond(true, "floe", {25, 50}), 1.2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OverlapTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::inferd
