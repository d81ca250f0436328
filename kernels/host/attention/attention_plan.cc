#include "kernels/host/attention/attention_plan.h"

#include <algorithm>

namespace sluice::cpu {

AttentionPlan::AttentionPlan(const BackendLimits& l, uint32_t threads, uint64_t partial_floats)
    : threads_(threads), partial_floats_(partial_floats) {
  // Blocks of kSpanQueries queries, and a task per span for the few blocks that are split.
  const uint64_t blocks =
      uint64_t{l.max_tokens} * l.heads / kSpanQueries + uint64_t{l.max_sequences} * l.heads + 1;
  tasks_.reserve(blocks + 4 * uint64_t{threads} * (l.max_context / kSpanTokens + 2));
  spans_left_ = std::make_unique<std::atomic<uint32_t>[]>(blocks);
}

void AttentionPlan::Make(const AttentionCall& call) {
  MakeBlocks(call);
  // Four blocks for each thread share out evenly enough.
  if (threads_ == 1 || tasks_.size() >= 4 * size_t{threads_}) {
    return;
  }
  SplitBlocks(SpanFloats(call.kv.value_dim));
}

// One task for each block.
void AttentionPlan::MakeBlocks(const AttentionCall& call) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  tasks_.clear();
  for (const SequenceRows& sequence : call.sequences) {
    const uint32_t queries = sequence.rows * group;
    for (uint32_t head = 0; head < call.kv.kv_heads; ++head) {
      for (uint32_t q = 0; q < queries; q += kSpanQueries) {
        AttentionTask task;
        task.sequence = &sequence;
        task.kv_head = head;
        task.first_query = q;
        task.queries = std::min(kSpanQueries, queries - q);
        const uint32_t first_position = sequence.first_position + q / group;
        const uint32_t last_position = sequence.first_position + (q + task.queries - 1) / group;
        task.first_span = FirstVisible(first_position, call) / kSpanTokens;
        task.spans = last_position / kSpanTokens - task.first_span + 1;
        tasks_.push_back(task);
      }
    }
  }
}

// One task for each span of the blocks, if there is room for them and their results.
void AttentionPlan::SplitBlocks(uint64_t span_floats) {
  const size_t blocks = tasks_.size();
  uint64_t spans = 0;
  for (const AttentionTask& task : tasks_) {
    spans += task.spans;
  }
  if (spans * span_floats > partial_floats_ || spans + blocks > tasks_.capacity()) {
    return;
  }
  // Blocks stay in front while their spans are appended, then are erased.
  uint64_t partial = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    AttentionTask task = tasks_[block];
    task.block = block;
    task.block_first_span = task.first_span;
    task.block_spans = task.spans;
    task.partial = partial;
    spans_left_[block].store(task.spans, std::memory_order_relaxed);
    partial += task.spans * span_floats;
    for (uint32_t s = 0; s < task.block_spans; ++s) {
      task.first_span = task.block_first_span + s;
      task.spans = 1;
      tasks_.push_back(task);
    }
  }
  tasks_.erase(tasks_.begin(), tasks_.begin() + static_cast<std::ptrdiff_t>(blocks));
}

}  // namespace sluice::cpu
