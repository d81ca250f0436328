// Attention over the paged cache: walks the spans of each block of queries in order and combines their
// softmaxes; the sums and their order do not depend on how the work is shared (ARITHMETIC.md 6).
//
// Thread safety: as Backend; tiles write disjoint memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention_calls.h"
#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"

namespace sluice::cpu {

// Cuts the queries of an attention call into tasks. The queries of one sequence and one KV head form blocks,
// each over all its spans; rows that see chosen blocks of positions have blocks of their own. Where there are
// too few blocks for the threads (one long context in decode), each span of a block is a task, and the last
// one to finish combines the block.

// One block of queries of one sequence and KV head, over all its spans or (partial) over one.
struct AttentionTask {
  const SequenceRows* sequence = nullptr;
  uint32_t kv_head = 0;
  uint32_t first_query = 0;  // query = row * heads per KV head + head
  uint32_t queries = 0;
  // The row's list of chosen blocks, which the spans cut like a sequence of its own; nullptr: of all
  // positions.
  const int32_t* list = nullptr;
  uint32_t first_span = 0;
  uint32_t spans = 0;  // in this task
  uint32_t block = 0;  // partial: index of the block's partial results and countdown
  uint32_t block_first_span = 0;
  uint32_t block_spans = 0;  // 0: not partial
  uint64_t partial = 0;      // offset of the block's partial results, in floats
};

// Floats of the results of one span for one block: m and l of every query, and o.
inline uint64_t SpanFloats(uint32_t value_dim) { return uint64_t{kSpanQueries} * (value_dim + 2); }

// Sums over spans of up to kSpanQueries queries in memory of SpanFloats: [query] m, [query] l,
// [query][value_dim] o.
struct SpanSums {
  float* m;
  float* l;
  float* o;
  uint32_t value_dim;
  SpanSums(float* memory, uint32_t value_dim)
      : m(memory), l(memory + kSpanQueries), o(memory + 2 * kSpanQueries), value_dim(value_dim) {}
};
// Appends query `i` of the next span to the sum over those before (ARITHMETIC.md 6).
void AppendSpan(const KernelTable& kernels, const SpanSums& next, const SpanSums& sum, uint32_t i);
// Appends a head's sink to the sum m, l, o of a query; `zeros`: value_dim of them.
void AppendSink(const KernelTable& kernels, float sink, const float* zeros, uint32_t value_dim, float* m,
                float* l, float* o);

class AttentionPlan {
 public:
  // `partial_floats`: room for the results of spans that are tasks of their own.
  AttentionPlan(const BackendLimits& limits, uint32_t threads, uint64_t partial_floats);

  // Cuts a call, which must outlive the use of the tasks.
  void Make(const AttentionCall& call);
  absl::Span<const AttentionTask> tasks() const { return tasks_; }
  // Marks the task, a span of a block, as done. True if it was the block's last: then all results are
  // visible.
  bool EndSpan(const AttentionTask& task) { return spans_left_[task.block].fetch_sub(1) == 1; }

 private:
  void MakeBlocks(const AttentionCall& call);
  void AddBlocks(const AttentionCall& call, AttentionTask task, uint32_t queries);
  void AddChosen(const AttentionCall& call, const SequenceRows& sequence, uint32_t row);
  void SplitBlocks(uint64_t span_floats);

  const uint32_t threads_;
  const uint64_t partial_floats_;
  std::vector<AttentionTask> tasks_;
  std::unique_ptr<std::atomic<uint32_t>[]> spans_left_;  // by block
};

class Attention {
 public:
  // All arguments but the limits must outlive it.
  Attention(const BackendLimits& limits, const KernelTable& kernels, Workspace& space, Tiles& tiles)
      : kernels_(kernels),
        space_(space),
        tiles_(tiles),
        plan_(limits, tiles.threads(), Workspace::kPartialFloats) {}
  // Errors: as Scratch.
  absl::Status Reserve(const BackendLimits& limits, Scratch* scratch);

  void Run(const AttentionCall& call);

  // A worker's kSpanScratchFloats, then SpanFloats twice, for other operations.
  float* scratch(uint32_t worker) const { return workers_[worker].span; }

 private:
  struct alignas(64) Worker {
    float* span = nullptr;  // scores, and m, l, o of kSpanQueries queries twice
  };

  void RunTask(const AttentionCall& call, const AttentionTask& task, uint32_t worker);
  void ComputeSpan(const AttentionCall& call, const AttentionTask& task, uint32_t span, uint32_t worker,
                   float* results, uint32_t* first_query, uint32_t* end_query);
  void FinishQueries(const AttentionCall& call, const AttentionTask& task);
  void WriteQuery(const AttentionCall& call, const AttentionTask& task, uint32_t i, float* m, float* l,
                  float* o);

  const KernelTable& kernels_;
  Workspace& space_;
  Tiles& tiles_;
  AttentionPlan plan_;
  std::vector<Worker> workers_;
};

}  // namespace sluice::cpu
