// The backends that compute with the CPU, as cases of the operations' tests.
#include <utility>

#include "kernels/cpu/cpu_isa.h"
#include "tests/kernels/op_testing.h"
#include "tests/support/delayed/delayed_backend.h"

namespace sluice {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

std::vector<BackendCase> AllBackends() {
  std::vector<BackendCase> cases = {{"reference", true, CpuIsa::kBest, 1}};
  for (const uint32_t threads : {1u, 2u, 3u}) {
    // Under a sanitizer one thread count for each instruction set is enough, in a third of the time.
    if (CpuIsaSupported(CpuIsa::kAvx2) && (!kSanitized || threads == 3)) {
      cases.push_back({"avx2_t" + std::to_string(threads), false, CpuIsa::kAvx2, threads});
    }
    // Only single rows differ from the other two instruction sets.
    if (CpuIsaSupported(CpuIsa::kAvx2Vnni) && threads == 2) {
      cases.push_back({"avx2vnni_t2", false, CpuIsa::kAvx2Vnni, threads});
    }
    if (CpuIsaSupported(CpuIsa::kAvx512) && (!kSanitized || threads == 2)) {
      cases.push_back({"avx512_t" + std::to_string(threads), false, CpuIsa::kAvx512, threads});
    }
  }
  // AMX has no name of its own: it is kBest where the CPU has it. The name is compared, because building the
  // table of AMX itself takes instructions that other CPUs lack.
  const auto best = cpu::ChooseKernels(CpuIsa::kBest);
  if (best.ok() && absl::string_view((*best)->name) == "amx") {
    cases.push_back({"amx_t2", false, CpuIsa::kBest, 2});
  }
  return cases;
}

std::vector<BackendCase> BackendsAndDelayed() {
  std::vector<BackendCase> cases = AllBackends();
  cases.push_back({"delayed", true, CpuIsa::kBest, 1, true});
  return cases;
}

std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.name; }

std::unique_ptr<Backend> MakeBackend(const BackendCase& which, const BackendLimits& limits) {
  auto backend =
      which.reference ? CreateReferenceBackend(limits) : CreateCpuBackend(limits, which.threads, which.isa);
  EXPECT_TRUE(backend.ok()) << backend.status();
  if (backend.ok() && which.delayed) {
    return std::make_unique<DelayedBackend>(*std::move(backend), limits, DelayOptions{.seed = 3});
  }
  return backend.ok() ? *std::move(backend) : nullptr;
}

}  // namespace sluice
