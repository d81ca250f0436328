// The host's own time for a decode step on device cuda, all experts resident: the backend, the engine and its
// policies over a CUDA library that does nothing (stub_cuda.cc). With all experts of a layer in one table the
// number of layers and experts counts, not their sizes.
//
// usage: cuda_host_cost PACK [TOKENS]      PACK: a pack folder of a model that needs no tokenizer
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "bench/cuda/step_engine.h"

namespace {

// CPU time of this thread, which runs the engine.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cuda_host_cost PACK [TOKENS]\n");
    return 2;
  }
  const uint32_t tokens = argc > 2 ? static_cast<uint32_t>(std::atoi(argv[2])) : 500;
  sluice::bench::StepEngine engine(argv[1], tokens);
  const double begin = CpuSeconds();
  const size_t made = engine.Run();
  const double us = (CpuSeconds() - begin) * 1e6 / static_cast<double>(std::max<size_t>(made, 1));
  const size_t layers = engine.config().layers.size();
  std::printf("a token: %.1f us of the engine's thread, %.2f us for each of %zu layers; %zu tokens\n", us,
              us / static_cast<double>(layers), layers, made);
}
