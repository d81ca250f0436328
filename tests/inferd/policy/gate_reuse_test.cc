// Queries of the next layers' routers: a question is kept until its answer was read.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/policy/expert_predictor.h"
#include "kernels/reference/reference_backend.h"
#include "pack/pack.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

// A repeated question keeps its entry, and the next one replaces the oldest: not one that has yet to be
// answered.
TEST(GateReuseTest, RepeatedQuestionOutlivesTheNextOne) {
  const TempDir dir;
  TinyModelSpec spec;
  spec.layers = 4;
  ASSERT_TRUE(PackTiny(spec, dir.File("model"), dir.File("pack")).ok());
  const auto client = *FakeWeightClient::Open(dir.File("pack"), {});
  const ModelConfig& config = client->pack().config();
  BackendLimits limits;
  limits.max_tokens = 1;
  limits.max_cols = config.hidden;
  limits.hidden = config.hidden;
  limits.experts = spec.experts;
  limits.top_k = spec.top_k;
  ReferenceBackend backend(limits);
  const MonotonicClock clock;
  SegmentBuffers segments(&backend);
  ASSERT_TRUE(client->SetSegmentObserver(&segments).ok());
  FetchQueue fetches(client.get(), &backend, &clock);
  const auto weights = DenseWeights::Create(client.get(), &fetches, &segments, nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE((*weights)->Acquire(absl::Seconds(60)).ok());
  const auto reuse =
      GateReuse::Create(config, weights->get(), &backend, 1, /*confidence=*/false, /*targets=*/2);
  ASSERT_TRUE(reuse.ok()) << reuse.status();

  const std::vector<float> x(config.hidden, 0.5f);
  RouterState state;
  state.residual = {{*backend.Allocate(x.size() * sizeof(float), BufferKind::kActivations), 0},
                    config.hidden};
  ASSERT_TRUE(backend.queue().Upload(x.data(), x.size() * sizeof(float), state.residual.base).ok());
  state.routing.tokens = 1;
  for (const uint32_t target : {1, 2, 1, 3}) {
    ASSERT_TRUE((*reuse)->Ask(state, target).ok()) << target;
  }
  EXPECT_TRUE((*reuse)->Answer(state, 1).ok());
  EXPECT_TRUE((*reuse)->Answer(state, 3).ok());
  EXPECT_EQ((*reuse)->Answer(state, 2).status().code(), absl::StatusCode::kInternal);
  (*weights)->Release();
  ASSERT_TRUE(client->SetSegmentObserver(nullptr).ok());
}

}  // namespace
}  // namespace sluice::inferd
