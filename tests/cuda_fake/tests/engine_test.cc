// A whole engine on device cuda: its tokens are the reference's, to the last one, and no check has anything
// to report, whatever order the device runs its work in.
#include <gtest/gtest.h>

#include "inferd/engine/engine_core.h"
#include "inferd/schedule/generate_sequence.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/engine_testing.h"

namespace sluice {
namespace {

constexpr uint32_t kTokens = 12;

// Greedy tokens behind a prompt of two chunks.
std::vector<int32_t> Tokens(const std::string& pack, bool cuda) {
  absl::StatusOr<std::unique_ptr<FakeWeightClient>> client = FakeWeightClient::Open(pack, {});
  EXPECT_TRUE(client.ok()) << client.status();
  EngineOptions options;
  options.parallel = 1;
  options.prefill_chunk = 4;
  const absl::StatusOr<EnginePlan> plan = PlanEngine(options, (*client)->pack().config());
  EXPECT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      cuda ? CreateCudaBackend(plan->backend) : CreateReferenceBackend(plan->backend);
  EXPECT_TRUE(backend.ok()) << backend.status();
  RequestRegistry registry(options.queue);
  absl::StatusOr<PolicyChoice> choice = ChoosePoliciesFor(options, (*client)->pack());
  EXPECT_TRUE(choice.ok()) << choice.status();
  absl::StatusOr<std::unique_ptr<EngineCore>> core = EngineCore::Create(
      *plan, *std::move(choice), client->get(), ComputePlaces{*std::move(backend), nullptr}, &registry);
  EXPECT_TRUE(core.ok()) << core.status();
  const GenerateSpec spec = GreedySpec("r", {4, 5, 6, 7, 8, 9}, kTokens);
  const absl::StatusOr<SequenceId> id = registry.Enter(spec.request_id, 1, 1);
  EXPECT_TRUE(id.ok()) << id.status();
  auto sink = std::make_shared<CollectingSink>();
  (*core)->Add(std::make_unique<GenerateSequence>(*id, spec, sink, absl::Now(), 5,
                                                  (*client)->pack().config().eos_ids, nullptr));
  while (!sink->ended()) {
    (*core)->Step(absl::Now());
  }
  EXPECT_TRUE(sink->Await().ok()) << sink->Await();
  return sink->ids();
}

TEST(CudaEngineTest, TokensAreTheReferences) {
  TempDir dir;
  const absl::Status packed = PackFolder("tests/data/tiny/mixtral", dir.File("pack"), "q4");
  ASSERT_TRUE(packed.ok()) << packed;
  const std::vector<int32_t> expected = Tokens(dir.File("pack"), false);
  EXPECT_EQ(expected.size(), kTokens);
  for (const uint64_t seed : {1, 2}) {
    cuda_fake::ResetFake({.seed = seed});
    EXPECT_EQ(Tokens(dir.File("pack"), true), expected) << "seed " << seed;
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      ADD_FAILURE() << "seed " << seed << ": " << report.text;
    }
  }
}

}  // namespace
}  // namespace sluice
