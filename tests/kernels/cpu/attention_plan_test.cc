// Tests the cut of attention: every span of every block once, spans as tasks only where that helps and fits.
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/attention.h"

namespace sluice::cpu {
namespace {

constexpr uint32_t kValueDim = 16;

BackendLimits Limits() {
  BackendLimits limits;
  limits.max_tokens = 64;
  limits.max_sequences = 4;
  limits.heads = 8;
  limits.head_dim = kValueDim;
  limits.max_context = 8192;
  return limits;
}

// One sequence of `rows` rows from `position` on, 8 heads over 2 KV heads.
struct Call {
  Call(uint32_t rows, uint32_t position) : sequence{.rows = rows, .first_position = position} {
    call.tokens = rows;
    call.heads = 8;
    call.sequences = {&sequence, 1};
    call.kv.kv_heads = 2;
    call.kv.head_dim = call.kv.value_dim = kValueDim;
  }
  SequenceRows sequence;
  AttentionCall call;
};

constexpr uint64_t kRoom = 1 << 20;

TEST(AttentionPlanTest, OneThreadTakesWholeBlocks) {
  AttentionPlan plan(Limits(), 1, kRoom);
  const Call decode(1, 1000);
  plan.Make(decode.call);
  ASSERT_EQ(plan.tasks().size(), 2u);
  for (const AttentionTask& task : plan.tasks()) {
    EXPECT_EQ(task.queries, 4u);
    EXPECT_EQ(task.first_span, 0u);
    EXPECT_EQ(task.spans, 4u);
    EXPECT_EQ(task.block_spans, 0u);
  }
}

TEST(AttentionPlanTest, AFewBlocksAreSplitAndTheLastSpanOfEachKnowsIt) {
  AttentionPlan plan(Limits(), 4, kRoom);
  const Call decode(1, 1000);
  plan.Make(decode.call);
  ASSERT_EQ(plan.tasks().size(), 8u);
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t span = 0; span < 4; ++span) {
      const AttentionTask& task = plan.tasks()[head * 4 + span];
      EXPECT_EQ(task.kv_head, head);
      EXPECT_EQ(task.first_span, span);
      EXPECT_EQ(task.spans, 1u);
      EXPECT_EQ(task.block_spans, 4u);
      EXPECT_EQ(task.partial, head * 4 * SpanFloats(kValueDim));
    }
  }
  for (const uint32_t i : {3u, 6u, 0u, 1u, 4u, 5u}) {
    EXPECT_FALSE(plan.EndSpan(plan.tasks()[i]));
  }
  EXPECT_TRUE(plan.EndSpan(plan.tasks()[2]));
  EXPECT_TRUE(plan.EndSpan(plan.tasks()[7]));
}

TEST(AttentionPlanTest, ASlidingWindowLeavesOldSpansOut) {
  AttentionPlan plan(Limits(), 4, kRoom);
  Call decode(1, 1000);
  decode.call.sliding_window = 300;
  plan.Make(decode.call);
  ASSERT_EQ(plan.tasks().size(), 4u);
  EXPECT_EQ(plan.tasks()[0].first_span, 2u);
  EXPECT_EQ(plan.tasks()[0].block_first_span, 2u);
  EXPECT_EQ(plan.tasks()[1].first_span, 3u);
}

TEST(AttentionPlanTest, WithoutRoomForTheirResultsSpansStayTogether) {
  const Call decode(1, 1000);
  AttentionPlan fits(Limits(), 4, 8 * SpanFloats(kValueDim));
  fits.Make(decode.call);
  EXPECT_EQ(fits.tasks().size(), 8u);
  AttentionPlan plan(Limits(), 4, 8 * SpanFloats(kValueDim) - 1);
  plan.Make(decode.call);
  EXPECT_EQ(plan.tasks().size(), 2u);
}

TEST(AttentionPlanTest, ManyBlocksAreSharedOutWhole) {
  AttentionPlan plan(Limits(), 2, kRoom);
  const Call prompt(64, 512);  // 64 rows of 4 heads: four blocks for each KV head
  plan.Make(prompt.call);
  ASSERT_EQ(plan.tasks().size(), 8u);
  uint32_t queries = 0;
  for (const AttentionTask& task : plan.tasks()) {
    EXPECT_EQ(task.block_spans, 0u);
    EXPECT_EQ(task.spans, 3u);
    queries += task.queries;
  }
  EXPECT_EQ(queries, 64u * 8);
}

}  // namespace
}  // namespace sluice::cpu
