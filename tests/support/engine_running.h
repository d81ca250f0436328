// Runs one greedy generation of a whole engine, step after step on the calling thread.
//
// Thread safety: a free function on what its caller owns.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/sequence.h"
#include "tests/support/engine_testing.h"

namespace sluice {

using BackendMaker = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendLimits&)>;

// Returns up to `count` tokens after a prompt, of several chunks where they are small: those before the first
// error, which is `status`. `counters`: the device's final ones, if not null. `words`: the answer consists of
// so many tokens, so that it repeats itself; 0: of any.
inline std::vector<inferd::TokenOut> AnswerOf(
    const inferd::EngineOptions& options, uint32_t count, inferd::WeightClient* client,
    const BackendMaker& make, absl::Status* status, BackendCounters* counters = nullptr, int32_t words = 0,
    std::vector<int32_t> prompt = {4, 5, 6, 7, 8, 9, 10, 11, 12, 13}) {
  const absl::StatusOr<inferd::EnginePlan> plan = inferd::PlanEngine(options, client->pack().config());
  EXPECT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<std::unique_ptr<Backend>> backend = make(plan->backend);
  EXPECT_TRUE(backend.ok()) << backend.status();
  const Backend* const device = backend->get();
  inferd::RequestRegistry registry(options.queue);
  absl::StatusOr<inferd::PolicyChoice> choice = inferd::ChoosePoliciesFor(options, client->pack());
  EXPECT_TRUE(choice.ok()) << choice.status();
  absl::StatusOr<std::unique_ptr<inferd::EngineCore>> core = inferd::EngineCore::Create(
      *plan, *std::move(choice), client, inferd::ComputeDevices{*std::move(backend), nullptr}, &registry);
  *status = core.status();
  if (!core.ok()) {
    return {};
  }
  inferd::GenerateSpec spec = GreedySpec("r", std::move(prompt), count);
  for (int32_t word = 4; word < 4 + words; ++word) {
    spec.sampling.logit_bias.emplace_back(word, 50.0f);
  }
  const absl::StatusOr<inferd::SequenceId> id = registry.Enter(spec.request_id, 1, 1);
  EXPECT_TRUE(id.ok()) << id.status();
  auto sink = std::make_shared<CollectingSink>();
  (*core)->Add(std::make_unique<inferd::GenerateSequence>(*id, spec, sink, SteadyNow(), 5,
                                                          client->pack().config().eos_ids, nullptr));
  while (!sink->ended()) {
    (*core)->Step(SteadyNow());
  }
  *status = sink->Await();
  if (counters != nullptr) {
    *counters = device->Counters();
  }
  return sink->tokens();
}

inline std::vector<int32_t> IdsOf(const std::vector<inferd::TokenOut>& tokens) {
  std::vector<int32_t> ids;
  for (const inferd::TokenOut& token : tokens) {
    ids.push_back(token.token_id);
  }
  return ids;
}

}  // namespace sluice
