// A whole engine whose prompts cuBLASLt multiplies, on the fakes of both: answers and perplexity are those of
// exact products within the stated tolerance, and no check has anything to report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/text/tokenizer.h"
#include "inferd/model/dense_shapes.h"
#include "inferd/model/pull_client.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_copier.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/engine_running.h"

namespace sluice {
namespace {

class FastEngineTest : public testing::Test {
 protected:
  FastEngineTest() { setenv("SLUICE_CUBLASLT", SLUICE_FAKE_CUBLASLT_PATH, 1); }
  ~FastEngineTest() override { unsetenv("SLUICE_CUBLASLT"); }

  std::unique_ptr<inferd::WeightClient> NewClient() const {
    auto client = FakeWeightClient::Open(pack_, {});
    EXPECT_TRUE(client.ok()) << client.status();
    return std::make_unique<inferd::PullClient>(
        *std::move(client), std::vector<std::shared_ptr<Copier>>{
                                std::make_shared<cuda::CudaCopier>(cuda::CudaCopier::Options())});
  }
  static inferd::EngineOptions Options(const Pack& pack, PrefillMath math) {
    inferd::EngineOptions options;
    options.parallel = 1;
    options.context = 256;
    options.prefill_chunk = 128;
    options.speculate = inferd::SpeculateMode::kOff;
    options.device = inferd::DeviceKind::kCuda;
    options.slab.transport = inferd::Transport::kPull;
    options.slab.budget = pack.total_expert_bytes();
    options.prefill_math = math;
    return options;
  }
  BackendMaker Maker(const Pack& pack) {
    return [this, &pack](BackendLimits limits) {
      limits.dense_shapes = inferd::DenseShapesOf(pack);
      absl::StatusOr<std::unique_ptr<Backend>> backend = CreateCudaBackend(limits);
      tested_ = backend.ok() ? (*backend)->Counters().library_products : 0;
      return backend;
    };
  }
  static void ExpectNoReports() {
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      ADD_FAILURE() << report.text;
    }
  }

  // A greedy answer to a prompt of 80 tokens.
  std::vector<inferd::TokenOut> Answer(PrefillMath math, BackendCounters* counters) {
    cuda_fake::ResetFake({.seed = 2});
    const std::unique_ptr<inferd::WeightClient> client = NewClient();
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 80; ++i) {
      prompt.push_back(4 + i * 7 % 50);
    }
    absl::Status status;
    const auto tokens = AnswerOf(Options(client->pack(), math), 8, client.get(), Maker(client->pack()),
                                 &status, counters, /*words=*/0, prompt);
    EXPECT_TRUE(status.ok()) << status;
    ExpectNoReports();
    return tokens;
  }

  // Log probabilities of a text's tokens, each behind those before it.
  std::vector<float> Score(const std::vector<int32_t>& text, PrefillMath math) {
    cuda_fake::ResetFake({.seed = 0});
    const std::unique_ptr<inferd::WeightClient> client = NewClient();
    const Pack& pack = client->pack();
    const inferd::EngineOptions options = Options(pack, math);
    const inferd::EnginePlan plan = *inferd::PlanEngine(options, pack.config());
    absl::StatusOr<std::unique_ptr<Backend>> backend = Maker(pack)(plan.backend);
    EXPECT_TRUE(backend.ok()) << backend.status();
    inferd::RequestRegistry registry(options.queue);
    auto core = inferd::EngineCore::Create(plan, *inferd::ChoosePoliciesFor(options, pack), client.get(),
                                           {*std::move(backend), nullptr}, &registry);
    EXPECT_TRUE(core.ok()) << core.status();
    inferd::ScoreSpec spec;
    spec.request_id = "s";
    spec.input.assign(text.begin(), text.end() - 1);
    spec.targets.assign(text.begin() + 1, text.end());
    const absl::StatusOr<inferd::SequenceId> id = registry.Enter(spec.request_id, 1, 1);
    EXPECT_TRUE(id.ok()) << id.status();
    auto sink = std::make_shared<CollectingScoreSink>();
    (*core)->Add(std::make_unique<inferd::ScoreSequence>(*id, spec, sink, SteadyNow(), pack.config().vocab));
    while (!sink->ended()) {
      (*core)->Step(SteadyNow());
    }
    EXPECT_TRUE(sink->Await().ok());
    products_ = (*core)->backend().Counters().library_products;
    core->reset();
    ExpectNoReports();
    return sink->target_logprobs();
  }

  TempDir dir_;
  std::string pack_ = dir_.File("pack");
  uint64_t products_ = 0;  // of the last scoring
  uint64_t tested_ = 0;    // products of the last backend's self-test
};

TEST_F(FastEngineTest, AnswersAreThoseOfExactProducts) {
  for (const char* const model : {"mixtral", "qwen3_moe"}) {
    for (const char* const bits : {"bf16", "q4"}) {
      SCOPED_TRACE(testing::Message() << model << " " << bits);
      pack_ = dir_.File(std::string(model) + bits);
      ASSERT_TRUE(PackFolder(std::string("tests/data/tiny/") + model, pack_, bits).ok());
      BackendCounters exact_counters;
      BackendCounters fast_counters;
      const auto exact = Answer(PrefillMath::kExact, &exact_counters);
      const auto fast = Answer(PrefillMath::kFast, &fast_counters);
      EXPECT_EQ(exact_counters.library_products, 0u);
      EXPECT_GT(fast_counters.library_products, tested_) << "no product beyond the self-test's";
      ASSERT_EQ(fast.size(), exact.size());
      for (size_t i = 0; i < fast.size(); ++i) {
        EXPECT_EQ(fast[i].token_id, exact[i].token_id) << "token " << i;
        // Random weights: where a difference crosses a step of rounding to 8 bits, later layers see it grown.
        EXPECT_NEAR(fast[i].logprob, exact[i].logprob, 0.25) << "token " << i;
      }
    }
  }
}

// The sample model on 128 tokens of plain English. Rounded activations cross steps of 8 bits, and routers
// choose other experts where two are nearly equal, so a text this short differs by more than products do:
// +0.7 % with q8, +0.03 % with bf16, which rounds nothing to 8 bits.
TEST_F(FastEngineTest, PerplexityOfTheSampleModelIsClose) {
  const auto tokenizer = Tokenizer::Load("deploy/sample");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ifstream file("LICENSE");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<int32_t> tokens = *(*tokenizer)->Encode(text);
  ASSERT_GT(tokens.size(), 129u);
  tokens.resize(129);
  for (const char* const bits : {"q8", "bf16"}) {
    pack_ = dir_.File(std::string("sample") + bits);
    ASSERT_TRUE(PackFolder("deploy/sample", pack_, bits).ok());
    const auto mean = [&](PrefillMath math) {
      const std::vector<float> logprobs = Score(tokens, math);
      EXPECT_EQ(logprobs.size(), tokens.size() - 1);
      double sum = 0;
      for (const float logprob : logprobs) {
        sum -= logprob;
      }
      return sum / static_cast<double>(logprobs.size());
    };
    const double exact = mean(PrefillMath::kExact);
    const double fast = mean(PrefillMath::kFast);
    EXPECT_GT(products_, tested_) << "no product beyond the self-test's";
    std::printf("%s: perplexity %.6f exact, %.6f fast: %+.5f %%\n", bits, std::exp(exact), std::exp(fast),
                100 * (std::exp(fast - exact) - 1));
    EXPECT_LT(std::abs(std::exp(fast - exact) - 1), std::string(bits) == "bf16" ? 0.002 : 0.02);
  }
}

}  // namespace
}  // namespace sluice
