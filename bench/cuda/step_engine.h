// An engine on device cuda for the programs that measure its decode steps: one request, all experts resident
// as far as the device's memory holds them.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "inferd/model/pull_client.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_copier.h"
#include "tests/support/engine_testing.h"

namespace sluice::bench {

// Ends the program with the status of an error.
template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

class StepEngine {
 public:
  // A prompt of three tokens has been processed, and its first answer of `tokens` + 1 made.
  StepEngine(const std::string& pack, uint32_t tokens)
      : client_(ClientOf(pack)), registry_(EngineOptions().queue) {
    const inferd::EngineOptions options = EngineOptions();
    const inferd::EnginePlan plan = Value(inferd::PlanEngine(options, client_->pack().config()));
    core_ = Value(inferd::EngineCore::Create(
        plan, Value(inferd::ChoosePoliciesFor(options, client_->pack())), client_.get(),
        inferd::ComputeDevices{Value(CreateCudaBackend(plan.backend)), nullptr}, &registry_));
    const inferd::GenerateSpec spec = GreedySpec("r", {4, 5, 6}, tokens + 1);
    core_->Add(std::make_unique<inferd::GenerateSequence>(Value(registry_.Enter(spec.request_id, 1, 1)), spec,
                                                          sink_, SteadyNow(), 5,
                                                          client_->pack().config().eos_ids, nullptr));
    while (sink_->ids().empty()) {
      core_->Step(SteadyNow());
    }
  }

  // Makes the other tokens; returns their number.
  size_t Run() {
    const size_t before = sink_->ids().size();
    while (!sink_->ended()) {
      core_->Step(SteadyNow());
    }
    return sink_->ids().size() - before;
  }

  const ModelConfig& config() const { return client_->pack().config(); }

 private:
  static inferd::EngineOptions EngineOptions() {
    inferd::EngineOptions options;
    options.parallel = 1;
    options.device = inferd::DeviceKind::kCuda;
    options.slab.transport = inferd::Transport::kPull;
    return options;
  }

  // Copies experts into the device's memory itself.
  static std::unique_ptr<inferd::WeightClient> ClientOf(const std::string& pack) {
    std::vector<std::shared_ptr<Copier>> copiers = {
        std::make_shared<cuda::CudaCopier>(cuda::CudaCopier::Options())};
    return std::make_unique<inferd::PullClient>(Value(FakeWeightClient::Open(pack, {})), std::move(copiers));
  }

  const std::unique_ptr<inferd::WeightClient> client_;
  inferd::RequestRegistry registry_;
  std::unique_ptr<inferd::EngineCore> core_;
  const std::shared_ptr<CollectingSink> sink_ = std::make_shared<CollectingSink>();
};

}  // namespace sluice::bench
