// Cost of a decode step of a tiny model on the fake of tests/cuda_fake: CPU time per step, and the number of
// warp instructions by kernel. It shows how long tests of whole engines take, and says nothing about a GPU.
//
// usage: cuda_step PACK [TOKENS]      PACK: a pack folder of a model that needs no tokenizer
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>

#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/support/engine_testing.h"

namespace sluice::bench {
namespace {

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "cuda_step: %s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// Runs the steps after the prompt.
void Run(const std::string& pack, uint32_t tokens, bool counts) {
  cuda_fake::ResetFake({.seed = 2, .counts = counts});
  std::unique_ptr<FakeWeightClient> client = Value(FakeWeightClient::Open(pack, {}));
  inferd::EngineOptions options;
  options.parallel = 1;
  const inferd::EnginePlan plan = Value(inferd::PlanEngine(options, client->pack().config()));
  inferd::RequestRegistry registry(options.queue);
  std::unique_ptr<inferd::EngineCore> core = Value(inferd::EngineCore::Create(
      plan, Value(inferd::ChoosePoliciesFor(options, client->pack())), client.get(),
      inferd::ComputeDevices{Value(CreateCudaBackend(plan.backend)), nullptr}, &registry));
  const inferd::GenerateSpec spec = GreedySpec("r", {4, 5, 6}, tokens + 1);
  auto sink = std::make_shared<CollectingSink>();
  core->Add(std::make_unique<inferd::GenerateSequence>(Value(registry.Enter(spec.request_id, 1, 1)), spec,
                                                       sink, absl::Now(), 5, client->pack().config().eos_ids,
                                                       nullptr));
  while (sink->ids().empty()) {
    core->Step(absl::Now());
  }
  cuda_fake::TakeKernelCounts();
  const cuda_fake::FakeCounters before = cuda_fake::CountersOfFake();
  const double begin = CpuSeconds();
  while (!sink->ended()) {
    core->Step(absl::Now());
  }
  const double seconds = CpuSeconds() - begin;
  const cuda_fake::FakeCounters after = cuda_fake::CountersOfFake();
  if (!counts) {
    const double instructions = static_cast<double>(after.warp_instructions - before.warp_instructions);
    std::printf("a step: %.1f ms of CPU, %.0f launches, %.0f warp-instructions of %.0f ns\n",
                seconds / tokens * 1e3, static_cast<double>(after.launches - before.launches) / tokens,
                instructions / tokens, seconds / instructions * 1e9);
    return;
  }
  std::map<std::string, std::pair<double, double>> kernels;
  for (const cuda_fake::KernelCounts& kernel : cuda_fake::TakeKernelCounts()) {
    kernels[kernel.kernel].first += static_cast<double>(kernel.counts.warp_instructions) / tokens;
    kernels[kernel.kernel].second += 1.0 / tokens;
  }
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [name, sums] : kernels) {
    rows.emplace_back(sums.first, absl::StrCat(sums.second, " x ", name));
  }
  std::sort(rows.rbegin(), rows.rend());
  for (const auto& [instructions, name] : rows) {
    std::printf("%10.0f  %s\n", instructions, name.c_str());
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cuda_step PACK [TOKENS]\n");
    return 2;
  }
  const uint32_t tokens = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 20;
  sluice::bench::Run(argv[1], tokens, false);
  sluice::bench::Run(argv[1], tokens, true);
}
