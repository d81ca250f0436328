// Device cuda on a GPU, with the real libraries, as a case of the operations' tests: what deploy/gpu/lease.sh
// runs.
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/op_testing.h"

namespace sluice {

std::vector<BackendCase> AllBackends() {
  BackendCase gpu;
  gpu.name = "gpu";
  return {gpu};
}

std::vector<BackendCase> BackendsAndDelayed() { return AllBackends(); }

std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.name; }

std::unique_ptr<Backend> MakeBackend(const BackendCase& which, const BackendLimits& limits) {
  auto backend = which.reference ? CreateReferenceBackend(limits) : CreateCudaBackend(limits);
  if (!backend.ok()) {
    // Every test would fail of it, one after another.
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    std::exit(EXIT_FAILURE);
  }
  return *std::move(backend);
}

}  // namespace sluice
