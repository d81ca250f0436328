#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"
#include "kernels/ops.h"

namespace sluice::cpu {

AttentionPlan::AttentionPlan(const BackendLimits& l, uint32_t threads, uint64_t partial_floats)
    : threads_(threads), partial_floats_(partial_floats) {
  // Blocks of kSpanQueries queries, and a task per span for the few blocks that are split.
  const uint64_t blocks =
      uint64_t{l.max_tokens} * l.heads / kSpanQueries + uint64_t{l.max_sequences} * l.heads + 1 +
      (l.chosen_lists == 0 ? 0 : uint64_t{l.max_tokens} * (l.chosen_lists + l.heads / kSpanQueries));
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

namespace {

// The entries of what a row sees, positions or entries of its list: the first and the last.
struct Entries {
  uint32_t first;
  uint32_t last;
};
Entries EntriesOf(const AttentionCall& call, const AttentionTask& task, uint32_t position) {
  return task.list == nullptr
             ? Entries{FirstVisible(position, call), position}
             : Entries{0, SeenPositions(position, call.chosen.top, call.chosen.block, call.chosen.whole) - 1};
}

// Number of a sequence's rows, from its first on, that see all positions.
uint32_t RowsOfAll(const AttentionCall& call, const SequenceRows& sequence) {
  const ChosenCall& chosen = call.chosen;
  const uint64_t end = chosen.blocks == nullptr
                           ? uint64_t{sequence.first_position} + sequence.rows
                           : uint64_t{chosen.top} * chosen.block - (chosen.whole ? 1 : 0);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(end, sequence.first_position, uint64_t{sequence.first_position} + sequence.rows) -
      sequence.first_position);
}

}  // namespace

// One task for each block.
void AttentionPlan::MakeBlocks(const AttentionCall& call) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  tasks_.clear();
  for (const SequenceRows& sequence : call.sequences) {
    const uint32_t of_all = RowsOfAll(call, sequence);
    for (uint32_t head = 0; head < call.kv.kv_heads; ++head) {
      AddBlocks(call, {.sequence = &sequence, .kv_head = head}, of_all * group);
    }
    for (uint32_t row = of_all; row < sequence.rows; ++row) {
      AddChosen(call, sequence, row);
    }
  }
}

// Adds the blocks of `queries` queries from the task's first on.
void AttentionPlan::AddBlocks(const AttentionCall& call, AttentionTask task, uint32_t queries) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  const uint32_t end = task.first_query + queries;
  for (; task.first_query < end; task.first_query += kSpanQueries) {
    task.queries = std::min(kSpanQueries, end - task.first_query);
    const uint32_t first_row = task.first_query / group;
    const uint32_t last_row = (task.first_query + task.queries - 1) / group;
    task.first_span = EntriesOf(call, task, task.sequence->first_position + first_row).first / kSpanTokens;
    task.spans = EntriesOf(call, task, task.sequence->first_position + last_row).last / kSpanTokens -
                 task.first_span + 1;
    tasks_.push_back(task);
  }
}

// Adds the blocks of a row with lists: the heads that share both a list and a KV head.
void AttentionPlan::AddChosen(const AttentionCall& call, const SequenceRows& sequence, uint32_t row) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  const uint32_t parts = std::max(call.chosen.lists, call.kv.kv_heads);
  const uint32_t heads = call.heads / parts;
  for (uint32_t part = 0; part < parts; ++part) {
    AttentionTask task{.sequence = &sequence, .kv_head = part * heads / group};
    task.first_query = row * group + part * heads % group;
    task.list = call.chosen.ListOf(sequence.first_row + row, part * call.chosen.lists / parts,
                                   sequence.first_position + row);
    AddBlocks(call, task, heads);
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

namespace {

// Appends m, l and o of the next span of a query to its sum so far (ARITHMETIC.md 6).
void Append(const KernelTable& kernels, float next_m, const float* next_l, const float* next_o,
            uint32_t value_dim, float* m, float* l, float* o) {
  const float largest = std::max(*m, next_m);
  // exp of one value: the lane sum of a single term is the term.
  const float a = kernels.exp_sum(m, largest, 1, nullptr);
  const float b = kernels.exp_sum(&next_m, largest, 1, nullptr);
  kernels.scale_add(next_l, b, a, 1, l);
  kernels.scale_add(next_o, b, a, value_dim, o);
  *m = largest;
}

}  // namespace

void AppendSpan(const KernelTable& kernels, const SpanSums& next, const SpanSums& sum, uint32_t i) {
  const uint64_t place = uint64_t{i} * sum.value_dim;
  Append(kernels, next.m[i], next.l + i, next.o + place, sum.value_dim, sum.m + i, sum.l + i, sum.o + place);
}

void AppendSink(const KernelTable& kernels, float sink, const float* zeros, uint32_t value_dim, float* m,
                float* l, float* o) {
  constexpr float kOne = 1.0f;
  Append(kernels, sink, &kOne, zeros, value_dim, m, l, o);
}

namespace {

// The cached rows of the positions of a span.
struct SpanRows {
  const uint8_t* k[kSpanTokens];
  const uint8_t* v[kSpanTokens];
  float k_scales[kSpanTokens];  // q8 only
  float v_scales[kSpanTokens];
};

// Finds the rows of the task's entries [begin, end).
void FindRows(const AttentionCall& call, const AttentionTask& task, uint32_t begin, uint32_t end,
              SpanRows* rows) {
  const CallKv& kv = call.kv;
  const absl::Span<const uint32_t> pages = task.sequence->pages;
  const uint32_t kv_head = task.kv_head;
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t p = task.list == nullptr ? i : PositionAt(task.list, call.chosen.block, i);
    const uint32_t token = p % kPageTokens;
    const uint8_t* k = kv.k + pages[p / kPageTokens] * kv.page_stride;
    const uint8_t* v = kv.v + pages[p / kPageTokens] * kv.v_page_stride;
    rows->k[i - begin] = k + KvRowOffset(kv.type, kv.head_dim, kv_head, token);
    rows->v[i - begin] = v + KvRowOffset(kv.type, kv.v_dim, kv_head, token);
    if (kv.type == KvType::kQ8) {
      std::memcpy(&rows->k_scales[i - begin], k + KvScaleOffset(kv.kv_heads, kv.head_dim, kv_head, token),
                  sizeof(float));
      std::memcpy(&rows->v_scales[i - begin], v + KvScaleOffset(kv.kv_heads, kv.v_dim, kv_head, token),
                  sizeof(float));
    }
  }
}

}  // namespace

absl::Status Attention::Reserve(const BackendLimits& l, Scratch* scratch) {
  workers_.resize(tiles_.threads());
  for (Worker& worker : workers_) {
    RETURN_IF_ERROR(
        scratch->Reserve(kSpanScratchFloats + 2 * SpanFloats(l.head_dim), "attention scratch", &worker.span));
  }
  return absl::OkStatus();
}

// Computes one span of a block into `results`; queries of the block outside [*first_query, *end_query) do not
// see it.
void Attention::ComputeSpan(const AttentionCall& call, const AttentionTask& task, uint32_t span,
                            uint32_t worker, float* results, uint32_t* first_query, uint32_t* end_query) {
  const CallKv& kv = call.kv;
  const SequenceRows& sequence = *task.sequence;
  const uint32_t group = call.heads / kv.kv_heads;
  const uint32_t base = span * kSpanTokens;
  const SpanSums out(results, kv.value_dim);
  const float* q[kSpanQueries];
  float* o[kSpanQueries];
  uint32_t low[kSpanQueries];
  uint32_t high[kSpanQueries];
  uint32_t first = 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < task.queries; ++i) {
    const uint32_t row = (task.first_query + i) / group;
    const Entries entries = EntriesOf(call, task, sequence.first_position + row);
    if (entries.last < base || entries.first >= base + kSpanTokens) {
      first += count == 0 ? 1 : 0;
      continue;
    }
    const uint64_t head = uint64_t{task.kv_head} * group + (task.first_query + i) % group;
    q[count] = call.q.Row(sequence.first_row + row) + head * kv.head_dim;
    o[count] = out.o + uint64_t{i} * kv.value_dim;
    low[count] = std::max(entries.first, base);
    high[count] = std::min(entries.last, base + kSpanTokens - 1);
    ++count;
  }
  *first_query = first;
  *end_query = first + count;
  if (count == 0) {
    return;
  }
  // Later queries begin and end later.
  const uint32_t begin = low[0];
  const uint32_t end = high[count - 1] + 1;
  SpanRows rows;
  FindRows(call, task, begin, end, &rows);
  SpanCall c;
  c.k = rows.k;
  c.v = rows.v;
  c.k_scales = kv.type == KvType::kQ8 ? rows.k_scales : nullptr;
  c.v_scales = kv.type == KvType::kQ8 ? rows.v_scales : nullptr;
  c.type = kv.type;
  c.first = begin;
  c.count = end - begin;
  c.head_dim = kv.head_dim;
  c.value_dim = kv.value_dim;
  c.scale = call.scale;
  c.queries = count;
  c.q = q;
  c.low = low;
  c.high = high;
  c.m = out.m + first;
  c.l = out.l + first;
  c.o = o;
  c.scratch = workers_[worker].span;
  c.down_scratch = space_.workers[worker].down;
  c.gemm_scratch = space_.workers[worker].gemm;
  kernels_.span(c);
}

void Attention::RunTask(const AttentionCall& call, const AttentionTask& task, uint32_t worker) {
  const uint32_t value_dim = call.kv.value_dim;
  const uint64_t floats = SpanFloats(value_dim);
  uint32_t first = 0;
  uint32_t end = 0;
  if (task.block_spans > 0) {
    const uint64_t place = task.partial + (task.first_span - task.block_first_span) * floats;
    ComputeSpan(call, task, task.first_span, worker, space_.partials + place, &first, &end);
    if (plan_.EndSpan(task)) {
      FinishQueries(call, task);
    }
    return;
  }
  const SpanSums sum(workers_[worker].span + kSpanScratchFloats, value_dim);
  const SpanSums next(workers_[worker].span + kSpanScratchFloats + floats, value_dim);
  uint64_t started = 0;  // a bit per query: its sum has begun
  static_assert(kSpanQueries <= 64);
  for (uint32_t s = 0; s < task.spans; ++s) {
    ComputeSpan(call, task, task.first_span + s, worker, next.m, &first, &end);
    for (uint32_t i = first; i < end; ++i) {
      if ((started >> i & 1) != 0) {
        AppendSpan(kernels_, next, sum, i);
        continue;
      }
      started |= uint64_t{1} << i;
      sum.m[i] = next.m[i];
      sum.l[i] = next.l[i];
      std::memcpy(sum.o + uint64_t{i} * value_dim, next.o + uint64_t{i} * value_dim,
                  value_dim * sizeof(float));
    }
  }
  for (uint32_t i = 0; i < task.queries; ++i) {
    WriteQuery(call, task, i, sum.m + i, sum.l + i, sum.o + uint64_t{i} * value_dim);
  }
}

// Writes a query's output from the sum over all its spans, which it modifies.
void Attention::WriteQuery(const AttentionCall& call, const AttentionTask& task, uint32_t i, float* m,
                           float* l, float* o) {
  const uint32_t value_dim = call.kv.value_dim;
  const uint32_t group = call.heads / call.kv.kv_heads;
  const uint32_t query = task.first_query + i;
  const uint64_t head = uint64_t{task.kv_head} * group + query % group;
  if (call.sinks != nullptr) {
    AppendSink(kernels_, call.sinks[head], space_.zeros(), value_dim, m, l, o);
  }
  kernels_.divide(o, *l, value_dim,
                  call.out.Row(task.sequence->first_row + query / group) + head * value_dim);
}

// Combines the spans of a split block in order, once all are computed.
void Attention::FinishQueries(const AttentionCall& call, const AttentionTask& task) {
  const uint32_t value_dim = call.kv.value_dim;
  const uint32_t group = call.heads / call.kv.kv_heads;
  for (uint32_t i = 0; i < task.queries; ++i) {
    const uint32_t query = task.first_query + i;
    const Entries entries = EntriesOf(call, task, task.sequence->first_position + query / group);
    const uint32_t first = entries.first / kSpanTokens;
    const auto span = [&](uint32_t s) {
      return SpanSums(space_.partials + task.partial + (s - task.block_first_span) * SpanFloats(value_dim),
                      value_dim);
    };
    const SpanSums sum = span(first);
    for (uint32_t s = first + 1; s <= entries.last / kSpanTokens; ++s) {
      AppendSpan(kernels_, span(s), sum, i);
    }
    WriteQuery(call, task, i, sum.m + i, sum.l + i, sum.o + uint64_t{i} * value_dim);
  }
}

void Attention::Run(const AttentionCall& call) {
  plan_.Make(call);
  const absl::Span<const AttentionTask> tasks = plan_.tasks();
  uint64_t work = 0;
  for (const AttentionTask& task : tasks) {
    work += uint64_t{task.queries} * task.spans * kSpanTokens * call.kv.head_dim;
  }
  tiles_.Run(static_cast<uint32_t>(tasks.size()), work,
             [&](uint32_t tile, uint32_t worker) { RunTask(call, tasks[tile], worker); });
}

}  // namespace sluice::cpu
