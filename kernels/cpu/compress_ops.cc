// RopeHeads, Compress and CompressedAttention: entries, and rows with some of their heads, are tiles of one
// region.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/ops.h"

namespace sluice::cpu {
namespace {

// Heads of a tile of CompressedAttention: their queries share the keys of a row.
constexpr uint32_t kTileHeads = 16;
static_assert(kTileHeads <= kSpanQueries);

void WriteEntry(Device& d, const CompressCall& call, uint32_t sequence, uint32_t e, float* memory) {
  const uint32_t dim = call.entries.head_dim;
  float* const entry = memory;
  CompressEntry(
      call, sequence, e, [&](float* x, uint32_t n) { d.kernels.exp_sum(x, 0.0f, n, x); }, memory + dim,
      entry);
  if (call.norm.weight != nullptr) {
    NormRow(d.kernels, call.norm, entry, dim, entry);
  }
  const float* cos_sin = call.rope.At(e * call.entries.rate);
  const uint32_t half = call.rope.dims / 2;
  d.kernels.rope(entry + call.rope.offset, cos_sin, cos_sin + half, half, call.rope.interleaved);
  const uint8_t* place = nullptr;
  uint8_t* const row = call.entries.Row(call.states.sequences[sequence], e, &place);
  const float scale = d.kernels.store_kv(call.entries.type, entry, dim, row);
  if (call.entries.type == KvType::kQ8) {
    std::memcpy(const_cast<uint8_t*>(place), &scale, sizeof scale);
  }
}

}  // namespace

void Run(Device& d, const RopeHeadsCall& call) {
  const uint32_t half = call.rope.dims / 2;
  for (const SequenceRows& sequence : call.sequences) {
    d.tiles.Run(sequence.rows, uint64_t{sequence.rows} * call.heads * call.rope.dims * 4,
                [&](uint32_t i, uint32_t worker) {
                  const float* cos_sin = call.rope.At(sequence.first_position + i);
                  const float* sines = cos_sin + half;
                  float* const opposite = d.space.workers[worker].any;
                  for (uint32_t j = 0; j < half && call.back; ++j) {
                    opposite[j] = -sines[j];
                  }
                  for (uint32_t h = 0; h < call.heads; ++h) {
                    float* head = call.x.Row(sequence.first_row + i) + uint64_t{h} * call.head_dim;
                    d.kernels.rope(head + call.rope.offset, cos_sin, call.back ? opposite : sines, half,
                                   call.rope.interleaved);
                  }
                });
  }
}

void Run(Device& d, const CompressCall& call) {
  const uint32_t rate = call.entries.rate;
  const uint32_t width = call.Width();
  for (uint32_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    const uint32_t first = sequence.first_position / rate;
    const uint32_t entries = (sequence.first_position + sequence.rows) / rate - first;
    // The last tile keeps the rows that later entries need.
    d.tiles.Run(entries + 1, uint64_t{sequence.rows + call.Kept()} * width * 12,
                [&](uint32_t tile, uint32_t worker) {
                  if (tile == entries) {
                    return KeepSources(call, i);
                  }
                  WriteEntry(d, call, i, first + tile, d.space.workers[worker].any);
                });
  }
}

namespace {

// Heads [first_head, first_head + heads) of one row. `memory`: as much as Attention's worker has.
void AttendRow(Device& d, const CompressedAttentionCall& call, const SequenceRows& sequence, uint32_t i,
               uint32_t first_head, uint32_t heads, uint32_t worker) {
  const uint32_t dim = call.kv.head_dim;
  const uint32_t t = sequence.first_row + i;
  const uint32_t position = sequence.first_position + i;
  const CompressedAttentionCall::Keys keys = call.KeysOf(t, position);
  float* const scratch = d.attention.scratch(worker);
  SpanSums sum(scratch + kSpanScratchFloats, dim);
  SpanSums next(scratch + kSpanScratchFloats + SpanFloats(dim), dim);
  const uint8_t* k[kSpanTokens];
  float scales[kSpanTokens];
  const float* q[kTileHeads];
  float* o[kTileHeads];
  uint32_t low[kTileHeads];
  uint32_t high[kTileHeads];
  SpanCall c;
  c.k = c.v = k;
  c.k_scales = c.v_scales = call.kv.type == KvType::kQ8 ? scales : nullptr;
  c.type = call.kv.type;
  c.head_dim = c.value_dim = dim;
  c.scale = call.scale;
  c.queries = heads;
  c.q = q;
  c.low = low;
  c.high = high;
  c.o = o;
  c.scratch = scratch;
  c.down_scratch = d.space.workers[worker].down;
  c.gemm_scratch = d.space.workers[worker].gemm;
  for (uint32_t first = 0; first < keys.size(); first += kSpanTokens) {
    const SpanSums& to = first == 0 ? sum : next;
    c.first = first;
    c.count = std::min(kSpanTokens, keys.size() - first);
    c.m = to.m;
    c.l = to.l;
    for (uint32_t j = 0; j < c.count; ++j) {
      k[j] = call.KeyAt(sequence, keys, first + j, &scales[j]);
    }
    for (uint32_t h = 0; h < heads; ++h) {
      q[h] = call.q.Row(t) + uint64_t{first_head + h} * dim;
      o[h] = to.o + uint64_t{h} * dim;
      low[h] = first;
      high[h] = first + c.count - 1;
    }
    d.kernels.span(c);
    for (uint32_t h = 0; h < heads && first > 0; ++h) {
      AppendSpan(d.kernels, next, sum, h);
    }
  }
  for (uint32_t h = 0; h < heads; ++h) {
    float* const of_head = sum.o + uint64_t{h} * dim;
    if (call.sinks != nullptr) {
      AppendSink(d.kernels, call.sinks[first_head + h], d.space.zeros(), dim, sum.m + h, sum.l + h, of_head);
    }
    d.kernels.divide(of_head, sum.l[h], dim, call.out.Row(t) + uint64_t{first_head + h} * dim);
  }
}

}  // namespace

void Run(Device& d, const CompressedAttentionCall& call) {
  const uint32_t groups = (call.heads + kTileHeads - 1) / kTileHeads;
  for (const SequenceRows& sequence : call.sequences) {
    const uint32_t end = sequence.first_position + sequence.rows - 1;
    const uint64_t keys =
        std::min(call.sliding_window, end + 1) + (call.entries.rate == 0 ? 0 : end / call.entries.rate);
    d.tiles.Run(sequence.rows * groups, uint64_t{sequence.rows} * call.heads * keys * call.kv.head_dim * 2,
                [&](uint32_t tile, uint32_t worker) {
                  const uint32_t first = tile % groups * kTileHeads;
                  AttendRow(d, call, sequence, tile / groups, first, std::min(kTileHeads, call.heads - first),
                            worker);
                });
  }
}

}  // namespace sluice::cpu
