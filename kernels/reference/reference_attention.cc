// ARITHMETIC.md section 6: the changes of q and k, and the contents of the cache.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"
#include "kernels/scalar_math.h"

namespace sluice::reference {
namespace {

// Writes one head's `dim` values at (page, token) of a cache side.
void StoreKv(const CallKv& kv, uint32_t dim, uint8_t* page, uint32_t kv_head, uint32_t token,
             const float* values) {
  const float scale = StoreKvRow(kv.type, values, dim, page + KvRowOffset(kv.type, dim, kv_head, token));
  if (kv.type == KvType::kQ8) {
    std::memcpy(page + KvScaleOffset(kv.kv_heads, dim, kv_head, token), &scale, sizeof scale);
  }
}

// Applies everything but the temperature to one row of `heads` heads.
void TransformHeads(const RopeKvWriteCall& call, const CallNorm& norm, uint32_t heads, const float* cos_sin,
                    float* row) {
  const uint32_t head_dim = call.kv.head_dim;
  if (call.qk_norm == QkNorm::kAcrossHeads) {
    NormRow(norm, row, uint64_t{heads} * head_dim, row);
  }
  for (uint32_t h = 0; h < heads; ++h) {
    float* head = row + uint64_t{h} * head_dim;
    if (call.qk_norm == QkNorm::kPerHead || call.qk_norm == QkNorm::kWeightedKey) {
      NormRow(norm, head, head_dim, head);
    }
    for (uint32_t d = 0; d < head_dim && call.clip > 0; ++d) {
      head[d] = std::clamp(head[d], -call.clip, call.clip);
    }
    RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, head + call.rope_offset);
    if (call.qk_norm == QkNorm::kPerHeadAfterRope || call.qk_norm == QkNorm::kWeightedAfterRope) {
      NormRow(norm, head, head_dim, head);
    }
  }
}

template <class Call>
float TemperatureOf(const Call& call, uint32_t position) {
  return TemperatureAt(position, call.temperature_scale, call.temperature_floor, call.temperature_offset);
}

void WriteRow(const RopeKvWriteCall& call, const SequenceRows& sequence, uint32_t i) {
  const CallKv& kv = call.kv;
  const uint32_t t = sequence.first_row + i;
  const uint32_t position = sequence.first_position + i;
  const float* cos_sin = call.rope_table + uint64_t{position} * call.rope_dims;
  float* q = call.q.Row(t);
  TransformHeads(call, call.q_norm, call.heads, cos_sin, q);
  if (call.temperature_scale != 0) {
    const float temperature = TemperatureOf(call, position);
    for (uint64_t c = 0; c < uint64_t{call.heads} * kv.head_dim; ++c) {
      q[c] = q[c] * temperature;
    }
  }
  const uint64_t cols = uint64_t{kv.kv_heads} * kv.head_dim;
  std::vector<float> k(call.k.Row(t), call.k.Row(t) + cols);
  const uint64_t v_cols = call.v.base == nullptr ? 0 : uint64_t{kv.kv_heads} * kv.value_dim;
  std::vector<float> v(call.v.Row(t), call.v.Row(t) + v_cols);
  TransformHeads(call, call.k_norm, kv.kv_heads, cos_sin, k.data());
  for (uint32_t h = 0; h < kv.kv_heads && call.value_norm; ++h) {
    float* head = v.data() + uint64_t{h} * kv.value_dim;
    NormRow({.epsilon = call.k_norm.epsilon}, head, kv.value_dim, head);
  }
  for (uint64_t c = 0; c < v_cols && call.clip > 0; ++c) {
    v[c] = std::clamp(v[c], -call.clip, call.clip);
  }
  const uint32_t page = sequence.pages[position / kPageTokens];
  for (uint32_t h = 0; h < kv.kv_heads; ++h) {
    StoreKv(kv, kv.head_dim, kv.k + page * kv.page_stride, h, position % kPageTokens,
            k.data() + uint64_t{h} * kv.head_dim);
  }
  for (uint32_t h = 0; h < kv.kv_heads && call.v.base != nullptr; ++h) {
    StoreKv(kv, kv.value_dim, kv.v + page * kv.v_page_stride, h, position % kPageTokens,
            v.data() + uint64_t{h} * kv.value_dim);
  }
}

void WriteRow(const LatentKvWriteCall& call, const SequenceRows& sequence, uint32_t i) {
  const uint32_t t = sequence.first_row + i;
  const uint32_t position = sequence.first_position + i;
  const float* cos_sin = call.rope_table + uint64_t{position} * call.rope_dims;
  const uint32_t row = call.kv_rank + call.rope_dims;
  for (uint32_t h = 0; h < call.heads; ++h) {
    const float* q = call.q.Row(t) + uint64_t{h} * (call.nope_dim + call.rope_dims) + call.nope_dim;
    float* out = call.q_out.Row(t) + uint64_t{h} * row + call.kv_rank;
    std::copy(q, q + call.rope_dims, out);
    RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, out);
  }
  if (call.temperature_scale != 0) {
    const float temperature = TemperatureOf(call, position);
    for (uint64_t c = 0; c < uint64_t{call.heads} * row; ++c) {
      call.q_out.Row(t)[c] = call.q_out.Row(t)[c] * temperature;
    }
  }
  std::vector<float> latent(call.latent.Row(t), call.latent.Row(t) + row);
  if (call.norm.weight != nullptr) {
    NormRow(call.norm, latent.data(), call.kv_rank, latent.data());
  }
  RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, latent.data() + call.kv_rank);
  StoreKv(call.kv, call.kv.head_dim, call.kv.k + sequence.pages[position / kPageTokens] * call.kv.page_stride,
          0, position % kPageTokens, latent.data());
}

}  // namespace

void Run(Device&, const RopeKvWriteCall& call) {
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      WriteRow(call, sequence, i);
    }
  }
}

void Run(Device&, const LatentKvWriteCall& call) {
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      WriteRow(call, sequence, i);
    }
  }
}

// ARITHMETIC.md section 6: scores, spans, sinks.

namespace {

// One cached row: values as floats (q8: the codes) and their scale (1 unless q8).
struct KvRow {
  std::vector<float> values;
  float scale = 1;
};

// The first `count` values of a row of `dim`.
void LoadKv(const CallKv& kv, uint32_t dim, const uint8_t* page, uint32_t kv_head, uint32_t token,
            uint32_t count, KvRow* out) {
  out->values.resize(count);
  LoadKvRow(kv.type, page + KvRowOffset(kv.type, dim, kv_head, token), count, out->values.data());
  if (kv.type == KvType::kQ8) {
    out->scale = LoadF32(page + KvScaleOffset(kv.kv_heads, dim, kv_head, token));
  }
}

// The softmax-weighted sum over some positions, not yet divided.
struct Span {
  float m = 0;
  float l = 0;
  std::vector<float> o;
};

// q . k of a cached key, unscaled.
float DotAt(const CallKv& kv, const SequenceRows& sequence, uint32_t kv_head, const float* q, uint32_t p) {
  KvRow row;
  LoadKv(kv, kv.head_dim, kv.k + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens,
         kv.head_dim, &row);
  LaneSum dot;
  for (uint32_t d = 0; d < kv.head_dim; ++d) {
    dot.AddProduct(d, q[d], row.values[d]);
  }
  return kv.type == KvType::kQ8 ? dot.Total() * row.scale : dot.Total();
}

// Computes one query head over entries [first, last] of one span of the visible positions: those of the list,
// or (nullptr) all.
Span ComputeSpan(const AttentionCall& call, const SequenceRows& sequence, uint32_t kv_head, const float* q,
                 const int32_t* list, uint32_t first, uint32_t last) {
  const CallKv& kv = call.kv;
  const bool q8 = kv.type == KvType::kQ8;
  const auto position = [&](uint32_t i) {
    return list == nullptr ? i : PositionAt(list, call.chosen.block, i);
  };
  std::vector<float> scores;
  for (uint32_t i = first; i <= last; ++i) {
    scores.push_back(DotAt(kv, sequence, kv_head, q, position(i)) * call.scale);
  }
  Span span;
  span.m = *std::max_element(scores.begin(), scores.end());
  span.o.assign(kv.value_dim, 0.0f);
  LaneSum l;
  KvRow row;
  for (uint32_t i = first; i <= last; ++i) {
    const float e = Exp(scores[i - first] - span.m);
    const uint32_t p = position(i);
    l.Add(i, e);
    LoadKv(kv, kv.v_dim, kv.v + sequence.pages[p / kPageTokens] * kv.v_page_stride, kv_head, p % kPageTokens,
           kv.value_dim, &row);
    const float weight = q8 ? e * row.scale : e;
    for (uint32_t d = 0; d < kv.value_dim; ++d) {
      span.o[d] = std::fma(weight, row.values[d], span.o[d]);
    }
  }
  span.l = l.Total();
  for (float& value : span.o) {
    value += 0.0f;
  }
  return span;
}

void Append(const Span& next, Span* sum) {
  const float m = std::max(sum->m, next.m);
  const float a = Exp(sum->m - m);
  const float b = Exp(next.m - m);
  sum->l = std::fma(next.l, b, sum->l * a);
  for (size_t d = 0; d < sum->o.size(); ++d) {
    sum->o[d] = std::fma(next.o[d], b, sum->o[d] * a);
  }
  sum->m = m;
}

}  // namespace

void Run(Device&, const AttentionCall& call) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      const uint32_t position = sequence.first_position + i;
      const uint32_t first = FirstVisible(position, call);
      for (uint32_t h = 0; h < call.heads; ++h) {
        const float* q = call.q.Row(sequence.first_row + i) + uint64_t{h} * call.kv.head_dim;
        const ChosenCall& chosen = call.chosen;
        const int32_t* list = chosen.ListOf(sequence.first_row + i, h * chosen.lists / call.heads, position);
        const uint32_t last =
            list == nullptr ? position : SeenPositions(position, chosen.top, chosen.block, chosen.whole) - 1;
        Span sum;
        for (uint32_t s = first / kSpanTokens; s <= last / kSpanTokens; ++s) {
          Span span = ComputeSpan(call, sequence, h / group, q, list, std::max(first, s * kSpanTokens),
                                  std::min(last, s * kSpanTokens + kSpanTokens - 1));
          if (sum.o.empty()) {
            sum = std::move(span);
          } else {
            Append(span, &sum);
          }
        }
        if (call.sinks != nullptr) {
          Append({call.sinks[h], 1.0f, std::vector<float>(call.kv.value_dim, 0.0f)}, &sum);
        }
        float* out = call.out.Row(sequence.first_row + i) + uint64_t{h} * call.kv.value_dim;
        for (uint32_t d = 0; d < call.kv.value_dim; ++d) {
          out[d] = sum.o[d] / sum.l;
        }
      }
    }
  }
}

// ARITHMETIC.md section 6: the choice of an indexer.

namespace {

// q . k of key `i` of an indexer, unscaled.
float KeyDot(const IndexSelectCall& call, const SequenceRows& sequence, const float* q, uint32_t i) {
  std::vector<float> key(call.KeyDim());
  float scale = 1;
  LoadKvRow(call.KeyType(), call.KeyAt(sequence, i, &scale), call.KeyDim(), key.data());
  LaneSum dot;
  for (uint32_t d = 0; d < call.KeyDim(); ++d) {
    dot.AddProduct(d, q[d], key[d]);
  }
  return call.KeyType() == KvType::kQ8 ? dot.Total() * scale : dot.Total();
}

// Score of a key for list `list` of a row.
float IndexScore(const IndexSelectCall& call, const SequenceRows& sequence, uint32_t t, uint32_t list,
                 uint32_t p) {
  const auto dot = [&](uint32_t head) {
    return KeyDot(call, sequence, call.q.Row(t) + uint64_t{head} * call.KeyDim(), p) * call.scale;
  };
  if (call.weights.base == nullptr && !call.summed) {
    return dot(list);
  }
  float sum = 0;
  for (uint32_t h = 0; h < call.heads; ++h) {
    sum = std::fma(call.summed ? 1.0f : call.weights.Row(t)[h], std::max(dot(h), 0.0f), sum);
  }
  return sum;
}

struct ScoredBlock {
  bool local = false;
  float score = 0;
  uint32_t block = 0;
};

bool Precedes(const ScoredBlock& a, const ScoredBlock& b) {
  if (a.local != b.local) {
    return a.local;
  }
  const bool a_is_nan = std::isnan(a.score);
  if (a_is_nan != std::isnan(b.score)) {
    return !a_is_nan;
  }
  return a.score > b.score || (!(a.score < b.score) && a.block < b.block);
}

}  // namespace

void Run(Device&, const IndexSelectCall& call) {
  const uint32_t size = call.chosen.block;
  for (const SequenceRows& sequence : call.sequences) {
    for (uint64_t cell = 0; cell < uint64_t{sequence.rows} * call.chosen.lists; ++cell) {
      const uint32_t i = static_cast<uint32_t>(cell / call.chosen.lists);
      const uint32_t list = static_cast<uint32_t>(cell % call.chosen.lists);
      const uint32_t position = sequence.first_position + i;
      int32_t* const out = call.chosen.ListOf(sequence.first_row + i, list, position);
      if (out == nullptr) {
        continue;
      }
      const bool whole = call.chosen.whole;
      const uint32_t count = whole ? call.KeysOf(position) : position / size + 1;
      const uint32_t best = whole ? call.chosen.top - 1 : call.chosen.top;
      std::vector<ScoredBlock> blocks;
      for (uint32_t b = 0; b < count; ++b) {
        ScoredBlock scored = {count - 1 - b < call.local, std::nanf(""), b};
        if (whole) {
          scored.score = IndexScore(call, sequence, sequence.first_row + i, list, b);
        }
        for (uint32_t p = b * size; p < b * size + size && p <= position && !whole; ++p) {
          // fmax ignores a NaN beside a number.
          scored.score = std::fmax(scored.score, IndexScore(call, sequence, sequence.first_row + i, list, p));
        }
        blocks.push_back(scored);
      }
      std::sort(blocks.begin(), blocks.end(), Precedes);
      std::transform(blocks.begin(), blocks.begin() + best, out,
                     [](const ScoredBlock& scored) { return static_cast<int32_t>(scored.block); });
      std::sort(out, out + best);
      if (whole) {
        out[best] = static_cast<int32_t>(count);
      }
    }
  }
}

}  // namespace sluice::reference
