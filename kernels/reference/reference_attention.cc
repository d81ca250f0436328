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

void RopeHead(const float* cos_sin, uint32_t dims, bool interleaved, float* head) {
  const uint32_t half = dims / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const float rotated_a = std::fma(a, c, -(b * s));
    b = std::fma(b, c, a * s);
    a = rotated_a;
  }
}

// Writes one head's `dim` values at (page, token) of a cache side.
void StoreKv(const CallKv& kv, uint32_t dim, uint8_t* page, uint32_t kv_head, uint32_t token,
             const float* values) {
  uint8_t* row = page + KvRowOffset(kv.type, dim, kv_head, token);
  if (kv.type == KvType::kF32) {
    std::memcpy(row, values, dim * sizeof(float));
    return;
  }
  if (kv.type == KvType::kF16) {
    for (uint32_t d = 0; d < dim; ++d) {
      const uint16_t bits = FloatToF16(values[d]);
      std::memcpy(row + 2 * d, &bits, sizeof bits);
    }
    return;
  }
  float largest = 0;
  for (uint32_t d = 0; d < dim; ++d) {
    largest = std::max(largest, std::fabs(values[d]));
  }
  const bool zero = largest < 1e-30f;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  const float scale = zero ? 0.0f : largest / 127.0f;
  for (uint32_t d = 0; d < dim; ++d) {
    const float code = std::nearbyint(values[d] * inverse);
    row[d] = static_cast<uint8_t>(
        static_cast<int8_t>(std::isnan(code) ? 0.0f : std::clamp(code, -128.0f, 127.0f)));
  }
  std::memcpy(page + KvScaleOffset(kv.kv_heads, dim, kv_head, token), &scale, sizeof scale);
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
    if (call.qk_norm == QkNorm::kPerHead) {
      NormRow(norm, head, head_dim, head);
    }
    for (uint32_t d = 0; d < head_dim && call.clip > 0; ++d) {
      head[d] = std::clamp(head[d], -call.clip, call.clip);
    }
    RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, head);
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
  const uint64_t v_cols = uint64_t{kv.kv_heads} * kv.value_dim;
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
  const uint8_t* row = page + KvRowOffset(kv.type, dim, kv_head, token);
  out->values.resize(count);
  for (uint32_t d = 0; d < count; ++d) {
    out->values[d] = kv.type == KvType::kF32   ? LoadF32(row + 4 * d)
                     : kv.type == KvType::kF16 ? F16ToFloat(LoadU16(row + 2 * d))
                                               : static_cast<float>(static_cast<int8_t>(row[d]));
  }
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

// Computes one query head over the visible positions [first, last] of one span.
Span ComputeSpan(const AttentionCall& call, const SequenceRows& sequence, uint32_t kv_head, const float* q,
                 uint32_t first, uint32_t last) {
  const CallKv& kv = call.kv;
  const bool q8 = kv.type == KvType::kQ8;
  std::vector<float> scores;
  KvRow row;
  for (uint32_t p = first; p <= last; ++p) {
    LoadKv(kv, kv.head_dim, kv.k + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens,
           kv.head_dim, &row);
    LaneSum dot;
    for (uint32_t d = 0; d < kv.head_dim; ++d) {
      dot.AddProduct(d, q[d], row.values[d]);
    }
    scores.push_back((q8 ? dot.Total() * row.scale : dot.Total()) * call.scale);
  }
  Span span;
  span.m = *std::max_element(scores.begin(), scores.end());
  span.o.assign(kv.value_dim, 0.0f);
  LaneSum l;
  for (uint32_t p = first; p <= last; ++p) {
    const float e = Exp(scores[p - first] - span.m);
    l.Add(p, e);
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
        Span sum;
        for (uint32_t s = first / kSpanTokens; s <= position / kSpanTokens; ++s) {
          Span span = ComputeSpan(call, sequence, h / group, q, std::max(first, s * kSpanTokens),
                                  std::min(position, s * kSpanTokens + kSpanTokens - 1));
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

}  // namespace sluice::reference
