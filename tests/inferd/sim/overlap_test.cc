// How much of copying is hidden behind computing, and the other way round, in modelled time: links of 25 and
// 50 GB/s, device memory of 1 and 3.3 TB/s, the shapes of Mixtral 8x7B and Qwen3-30B-A3B with half of the
// experts on the device. A step cannot take less than its computing, nor less than its bytes take on the
// link; what it takes beyond the longer of the two is not hidden. This is a model: kernels take the time of
// their bytes, and nothing else costs anything.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice {
namespace {

constexpr double kMostBeyond = 1.1;

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

// Of bf16, in milliseconds.
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
  // A model of few numbers with as many experts; times are those of the real shape.
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
    TestEngineOptions options;
    options.engine.device = DeviceKind::kSim;
    options.engine.slab.budget = budget;
    options.engine.virtual_clock = true;
    options.engine.costs = costs;
    options.engine.preset = preset;
    if (preset == "floe") {
      options.engine.policies.policy = {"sparsity_threshold=0.5", "expert_predictor=gate_reuse"};
    }
    absl::StatusOr<TestEngine> test = StartEngine(pack_->dir(), options);
    EXPECT_TRUE(test.ok()) << test.status();
    Timings timings;
    for (const uint64_t seed : {1, 2}) {  // weightd has read all it needs the second time
      GenerateSpec spec = GreedySpec("g", {7}, 24);
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

  TempDir dir_;
  std::unique_ptr<Pack> pack_;
};

TEST_P(OverlapTest, DecodeTakesLittleMoreThanTheLongerOfComputeAndBytes) {
  for (const char* preset : {"exact", "floe"}) {
    for (const double link : {25.0, 50.0}) {
      for (const double memory : {1000.0, 3300.0}) {
        const VirtualCosts costs = CostsOf(GetParam(), link, memory);
        const Timings resident = Decode(preset, 0, costs);
        const Timings half = Decode(preset, pack_->total_expert_bytes() / 2, costs);
        const double bytes_per_second =
            static_cast<double>(pack_->expert_bytes(0, 0)) / (costs.link_ms * 1e-3);
        const double bytes = static_cast<double>(half.bytes_link) / bytes_per_second;
        const double compute = resident.prompt_seconds + resident.decode_seconds;
        const double taken = half.prompt_seconds + half.decode_seconds;
        const double bound = std::max(compute, bytes);
        const std::string what =
            absl::StrCat(GetParam().name, ", ", preset, ", link ", link, " GB/s, memory ", memory, " GB/s");
        std::printf(
            "%s: %.3f of max(compute %.3g s, bytes %.3g s), %.0f %% hits\n", what.c_str(), taken / bound,
            compute, bytes,
            100.0 * static_cast<double>(half.expert_hits) / static_cast<double>(half.expert_requests));
        EXPECT_LE(taken, kMostBeyond * bound) << what;
        EXPECT_GE(taken, 0.95 * bound) << what << ": the model forgets something";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OverlapTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice
