// ARITHMETIC.md section 6.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/kv_layout.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice {
namespace {

using reference::LaneSum;

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

// Writes one head's values at (page, token) of a cache side.
void StoreKv(const CpuKv& kv, uint8_t* page, uint32_t kv_head, uint32_t token, const float* values) {
  uint8_t* row = page + KvRowOffset(kv.type, kv.head_dim, kv_head, token);
  if (kv.type == KvType::kF32) {
    std::memcpy(row, values, kv.head_dim * sizeof(float));
    return;
  }
  if (kv.type == KvType::kF16) {
    for (uint32_t d = 0; d < kv.head_dim; ++d) {
      const uint16_t bits = FloatToF16(values[d]);
      std::memcpy(row + 2 * d, &bits, sizeof bits);
    }
    return;
  }
  float largest = 0;
  for (uint32_t d = 0; d < kv.head_dim; ++d) {
    largest = std::max(largest, std::fabs(values[d]));
  }
  const bool zero = largest < 1e-30f;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  const float scale = zero ? 0.0f : largest / 127.0f;
  for (uint32_t d = 0; d < kv.head_dim; ++d) {
    const float code = std::nearbyint(values[d] * inverse);
    row[d] = static_cast<uint8_t>(
        static_cast<int8_t>(std::isnan(code) ? 0.0f : std::clamp(code, -128.0f, 127.0f)));
  }
  std::memcpy(page + KvScaleOffset(kv.kv_heads, kv.head_dim, kv_head, token), &scale, sizeof scale);
}

// One cached row: values as floats (q8: the codes) and their scale (1 unless q8).
struct KvRow {
  std::vector<float> values;
  float scale = 1;
};

void LoadKv(const CpuKv& kv, const uint8_t* page, uint32_t kv_head, uint32_t token, KvRow* out) {
  const uint8_t* row = page + KvRowOffset(kv.type, kv.head_dim, kv_head, token);
  out->values.resize(kv.head_dim);
  for (uint32_t d = 0; d < kv.head_dim; ++d) {
    out->values[d] = kv.type == KvType::kF32   ? LoadF32(row + 4 * d)
                     : kv.type == KvType::kF16 ? F16ToFloat(LoadU16(row + 2 * d))
                                               : static_cast<float>(static_cast<int8_t>(row[d]));
  }
  if (kv.type == KvType::kQ8) {
    out->scale = LoadF32(page + KvScaleOffset(kv.kv_heads, kv.head_dim, kv_head, token));
  }
}

// The softmax-weighted sum over some positions, not yet divided.
struct Span {
  float m = 0;
  float l = 0;
  std::vector<float> o;
};

// One query head over the visible positions [first, last] of one span.
Span ComputeSpan(const AttentionCall& call, const SequenceRows& sequence, uint32_t kv_head, const float* q,
                 uint32_t first, uint32_t last) {
  const CpuKv& kv = call.kv;
  const bool q8 = kv.type == KvType::kQ8;
  std::vector<float> scores;
  KvRow row;
  for (uint32_t p = first; p <= last; ++p) {
    LoadKv(kv, kv.k + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens, &row);
    LaneSum dot;
    for (uint32_t d = 0; d < kv.head_dim; ++d) {
      dot.AddProduct(d, q[d], row.values[d]);
    }
    scores.push_back((q8 ? dot.Total() * row.scale : dot.Total()) * call.scale);
  }
  Span span;
  span.m = *std::max_element(scores.begin(), scores.end());
  span.o.assign(kv.head_dim, 0.0f);
  LaneSum l;
  for (uint32_t p = first; p <= last; ++p) {
    const float e = reference::Exp(scores[p - first] - span.m);
    l.Add(p, e);
    LoadKv(kv, kv.v + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens, &row);
    const float weight = q8 ? e * row.scale : e;
    for (uint32_t d = 0; d < kv.head_dim; ++d) {
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
  const float a = reference::Exp(sum->m - m);
  const float b = reference::Exp(next.m - m);
  sum->l = std::fma(next.l, b, sum->l * a);
  for (size_t d = 0; d < sum->o.size(); ++d) {
    sum->o[d] = std::fma(next.o[d], b, sum->o[d] * a);
  }
  sum->m = m;
}

}  // namespace

void ReferenceBackend::Run(const RopeKvCall& call) {
  const CpuKv& kv = call.kv;
  std::vector<float> head(kv.head_dim);
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      const uint32_t t = sequence.first_row + i;
      const uint32_t position = sequence.first_position + i;
      const float* cos_sin = call.rope_table + uint64_t{position} * call.rope_dims;
      for (uint32_t h = 0; h < call.heads; ++h) {
        float* q = call.q.Row(t) + uint64_t{h} * kv.head_dim;
        if (call.q_norm.weight != nullptr) {
          reference::RmsNormRow(q, kv.head_dim, call.q_norm.weight, call.q_norm.epsilon, q);
        }
        RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, q);
      }
      const uint64_t page = sequence.pages[position / kPageTokens] * kv.page_stride;
      for (uint32_t h = 0; h < kv.kv_heads; ++h) {
        const float* k = call.k.Row(t) + uint64_t{h} * kv.head_dim;
        std::copy(k, k + kv.head_dim, head.data());
        if (call.k_norm.weight != nullptr) {
          reference::RmsNormRow(head.data(), kv.head_dim, call.k_norm.weight, call.k_norm.epsilon,
                                head.data());
        }
        RopeHead(cos_sin, call.rope_dims, call.rope_interleaved, head.data());
        StoreKv(kv, kv.k + page, h, position % kPageTokens, head.data());
        StoreKv(kv, kv.v + page, h, position % kPageTokens, call.v.Row(t) + uint64_t{h} * kv.head_dim);
      }
    }
  }
}

void ReferenceBackend::Run(const AttentionCall& call) {
  const uint32_t group = call.heads / call.kv.kv_heads;
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      const uint32_t position = sequence.first_position + i;
      const uint32_t first = FirstVisible(position, call.sliding_window);
      for (uint32_t h = 0; h < call.heads; ++h) {
        const uint64_t column = uint64_t{h} * call.kv.head_dim;
        const float* q = call.q.Row(sequence.first_row + i) + column;
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
        float* out = call.out.Row(sequence.first_row + i) + column;
        for (uint32_t d = 0; d < call.kv.head_dim; ++d) {
          out[d] = sum.o[d] / sum.l;
        }
      }
    }
  }
}

}  // namespace sluice
