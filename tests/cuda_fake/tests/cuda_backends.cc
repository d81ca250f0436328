// Device cuda on the fake, as cases of the operations' tests: PTX of two architectures, work run as early
// as possible, as late as possible, and by chance. A test that leaves a report of a check behind has failed.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

bool WantsAll() {
  const char* const stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::strcmp(stress, "full") == 0;
}

// A test begins with a fresh device at its first backend, and ends with a look at what the checks have found.
class FreshDevice : public testing::EmptyTestEventListener {
 public:
  static FreshDevice& Get() {
    static auto* const only = [] {
      auto* const listener = new FreshDevice;
      testing::UnitTest::GetInstance()->listeners().Append(listener);
      return listener;
    }();
    return *only;
  }
  void OnTestStart(const testing::TestInfo&) override { fresh_ = false; }
  void OnTestEnd(const testing::TestInfo&) override {
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      ADD_FAILURE() << report.text;
    }
  }
  void Begin(const BackendCase& which) {
    if (!std::exchange(fresh_, true)) {
      cuda_fake::ResetFake(
          {.seed = which.seed, .memory_bytes = uint64_t{4} << 30, .capability = which.capability});
    }
  }

 private:
  bool fresh_ = false;
};

}  // namespace

std::vector<BackendCase> AllBackends() {
  FreshDevice::Get();
  const auto on = [](int capability, uint64_t seed) {
    BackendCase which;
    which.name = "sm_" + std::to_string(capability) + "_seed" + std::to_string(seed);
    which.capability = capability;
    which.seed = seed;
    return which;
  };
  if (!WantsAll()) {
    // A prime number, so that each loop of a body comes by all its values.
    std::vector<BackendCase> cases = {on(75, 1), on(80, 2)};
    for (BackendCase& which : cases) {
      which.every = 11;
    }
    return cases;
  }
  std::vector<BackendCase> cases;
  for (const int capability : {75, 80}) {
    for (const uint64_t seed : {0, 1, 2, 3, 4}) {
      cases.push_back(on(capability, seed));
    }
  }
  return cases;
}

// Device cuda computes later by itself, and the device that stands before others to do so wants their memory
// where the host can see it.
std::vector<BackendCase> BackendsAndDelayed() { return AllBackends(); }

std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.name; }

std::unique_ptr<Backend> MakeBackend(const BackendCase& which, const BackendLimits& limits) {
  if (!which.reference) {
    FreshDevice::Get().Begin(which);
  }
  auto backend = which.reference ? CreateReferenceBackend(limits) : CreateCudaBackend(limits);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

}  // namespace sluice
