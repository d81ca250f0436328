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

#include "absl/strings/str_cat.h"
#include "bench/cuda/step_engine.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::bench {
namespace {

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Runs the steps after the prompt.
void Run(const std::string& pack, uint32_t tokens, bool counts) {
  cuda_fake::ResetFake({.seed = 2, .counts = counts});
  StepEngine engine(pack, tokens);
  cuda_fake::TakeKernelCounts();
  const cuda_fake::FakeCounters before = cuda_fake::CountersOfFake();
  const double begin = CpuSeconds();
  engine.Run();
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
