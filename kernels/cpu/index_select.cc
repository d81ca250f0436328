#include "kernels/cpu/index_select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "common/base/status.h"
#include "kernels/ops.h"

namespace sluice::cpu {
namespace {

// Scores that are kept at once: 32 MiB, touched only as far as used.
constexpr uint64_t kScoreFloats = uint64_t{8} << 20;
// The key of a block that is always chosen, above those of all scores.
constexpr uint32_t kAlways = 0xffffffffu;

// A number that grows with the score; NaN is below all, and both zeros are one.
uint32_t Ordered(float score) {
  if (std::isnan(score)) {
    return 0;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The largest score of a block; NaN only if all are.
float Largest(const float* scores, uint32_t count) {
  float largest = scores[0];
  for (uint32_t i = 1; i < count; ++i) {
    if (std::isnan(largest) || scores[i] > largest) {
      largest = scores[i];
    }
  }
  return largest;
}

// Rows whose queries make one call of the kernel.
uint32_t RowsOfCall(uint32_t heads) { return std::max(1u, kSpanQueries / heads); }

}  // namespace

absl::Status IndexSelect::Reserve(const BackendLimits& l, Scratch* scratch) {
  if (l.index_heads == 0) {
    return absl::OkStatus();
  }
  stride_ = RoundUp(l.max_context, kSpanTokens);
  score_floats_ = std::max(kScoreFloats, stride_ * l.chosen_lists);
  RETURN_IF_ERROR(scratch->Reserve(score_floats_, "scores of an indexer", &scores_));
  workers_.resize(tiles_.threads());
  for (Worker& worker : workers_) {
    RETURN_IF_ERROR(scratch->Reserve(kSpanScratchFloats, "scratch of an indexer", &worker.span));
    RETURN_IF_ERROR(scratch->Reserve(l.max_context, "blocks of an indexer", &worker.keys));
  }
  return absl::OkStatus();
}

void IndexSelect::Run(const IndexSelectCall& call) {
  const uint32_t most =
      static_cast<uint32_t>(std::max<uint64_t>(1, score_floats_ / (stride_ * call.chosen.lists)));
  for (const SequenceRows& sequence : call.sequences) {
    // Rows that see all positions have no list.
    const uint64_t end = uint64_t{call.chosen.top} * call.chosen.block - (call.chosen.whole ? 1 : 0);
    uint32_t first = static_cast<uint32_t>(
        std::min<uint64_t>(sequence.rows, end - std::min<uint64_t>(end, sequence.first_position)));
    for (; first < sequence.rows; first += most) {
      RunBatch(call, {&sequence, first, std::min(most, sequence.rows - first)});
    }
  }
}

void IndexSelect::RunBatch(const IndexSelectCall& call, const Batch& batch) {
  const uint32_t together = RowsOfCall(call.heads);
  const uint32_t groups = (batch.rows + together - 1) / together;
  const uint32_t keys = call.KeysOf(batch.sequence->first_position + batch.first + batch.rows - 1);
  const uint32_t spans = (keys + kSpanTokens - 1) / kSpanTokens;
  const uint64_t work = uint64_t{batch.rows} * call.heads * spans * kSpanTokens * call.KeyDim();
  tiles_.Run(groups * spans, work, [&](uint32_t tile, uint32_t worker) {
    const uint32_t row = tile / spans * together;
    ScoreSpan(call, batch, row, std::min(together, batch.rows - row), tile % spans, worker);
  });
  const uint32_t lists = call.chosen.lists;
  tiles_.Run(
      batch.rows * lists, uint64_t{batch.rows} * lists * keys * 8,
      [&](uint32_t tile, uint32_t worker) { Choose(call, batch, tile / lists, tile % lists, worker); });
}

// Scores the keys of a span for rows [first_row, first_row + rows) of the batch.
void IndexSelect::ScoreSpan(const IndexSelectCall& call, const Batch& batch, uint32_t first_row,
                            uint32_t rows, uint32_t span, uint32_t worker) {
  const SequenceRows& sequence = *batch.sequence;
  const uint32_t base = span * kSpanTokens;
  const uint32_t keys = call.KeysOf(sequence.first_position + batch.first + first_row + rows - 1);
  if (keys <= base) {
    return;
  }
  const uint32_t count = std::min(keys - base, kSpanTokens);
  const uint8_t* k[kSpanTokens];
  float scales[kSpanTokens];
  for (uint32_t i = 0; i < count; ++i) {
    k[i] = call.KeyAt(sequence, base + i, &scales[i]);
  }
  const float* q[kSpanQueries];
  uint32_t low[kSpanQueries];
  uint32_t high[kSpanQueries];
  const float* weights[kSpanQueries];
  float* scores[kSpanQueries];
  std::fill_n(low, kSpanQueries, base);
  std::fill_n(high, kSpanQueries, base + count - 1);
  float ones[kSpanQueries];
  std::fill_n(ones, kSpanQueries, 1.0f);
  const bool weighted = call.weights.base != nullptr || call.summed;
  IndexScoresCall c;
  c.keys.k = k;
  c.keys.k_scales = call.KeyType() == KvType::kQ8 ? scales : nullptr;
  c.keys.type = call.KeyType();
  c.keys.first = base;
  c.keys.count = count;
  c.keys.head_dim = call.KeyDim();
  c.keys.scale = call.scale;
  c.keys.q = q;
  c.keys.low = low;
  c.keys.high = high;
  c.keys.scratch = workers_[worker].span;
  c.keys.gemm_scratch = space_.workers[worker].gemm;
  c.rows = rows;
  c.weights = weighted ? weights : nullptr;
  c.scores = scores;
  for (uint32_t h = 0; h < call.heads; h += kSpanQueries) {
    c.heads = std::min(kSpanQueries, call.heads - h);
    c.keys.queries = rows * c.heads;
    c.first_heads = h == 0;
    for (uint32_t i = 0; i < c.keys.queries; ++i) {
      const uint32_t row = first_row + i / c.heads;
      const uint32_t head = h + i % c.heads;
      q[i] = call.q.Row(sequence.first_row + batch.first + row) + uint64_t{head} * call.KeyDim();
      if (!weighted) {
        scores[i] = ScoresOf(call, row, head) + base;
      }
    }
    for (uint32_t row = 0; row < rows && weighted; ++row) {
      weights[row] =
          call.summed ? ones : call.weights.Row(sequence.first_row + batch.first + first_row + row) + h;
      scores[row] = ScoresOf(call, first_row + row, 0) + base;
    }
    kernels_.index_scores(c);
  }
}

// Writes a list of a row of the batch: the largest keys, which hold the score and, inverted, the block's
// number.
void IndexSelect::Choose(const IndexSelectCall& call, const Batch& batch, uint32_t row, uint32_t list,
                         uint32_t worker) {
  const ChosenCall& chosen = call.chosen;
  const uint32_t position = batch.sequence->first_position + batch.first + row;
  const bool whole = chosen.whole;
  // Blocks that take part, and how many of them are chosen.
  const uint32_t blocks = whole ? call.KeysOf(position) : position / chosen.block + 1;
  const uint32_t best = whole ? chosen.top - 1 : chosen.top;
  const float* const scores = ScoresOf(call, row, list);
  uint64_t* const keys = workers_[worker].keys;
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t first = b * chosen.block;
    const uint32_t key = blocks - 1 - b < call.local ? kAlways
                         : whole
                             ? Ordered(scores[b])
                             : Ordered(Largest(scores + first, std::min(chosen.block, position - first + 1)));
    keys[b] = uint64_t{key} << 32 | static_cast<uint32_t>(~b);
  }
  std::nth_element(keys, keys + best - 1, keys + blocks, std::greater<>());
  int32_t* const out = chosen.ListOf(batch.sequence->first_row + batch.first + row, list, position);
  for (uint32_t i = 0; i < best; ++i) {
    out[i] = static_cast<int32_t>(~static_cast<uint32_t>(keys[i]));
  }
  std::sort(out, out + best);
  if (whole) {
    out[best] = static_cast<int32_t>(blocks);
  }
}

}  // namespace sluice::cpu
