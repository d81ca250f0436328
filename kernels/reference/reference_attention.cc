// ARITHMETIC.md section 6: scores, spans, sinks.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/kv_layout.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {
namespace {

// One cached row: values as floats (q8: the codes) and their scale (1 unless q8).
struct KvRow {
  std::vector<float> values;
  float scale = 1;
};

// The first `count` values of a row.
void LoadKv(const CallKv& kv, const uint8_t* page, uint32_t kv_head, uint32_t token, uint32_t count,
            KvRow* out) {
  const uint8_t* row = page + KvRowOffset(kv.type, kv.head_dim, kv_head, token);
  out->values.resize(count);
  for (uint32_t d = 0; d < count; ++d) {
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

// Computes one query head over the visible positions [first, last] of one span.
Span ComputeSpan(const AttentionCall& call, const SequenceRows& sequence, uint32_t kv_head, const float* q,
                 uint32_t first, uint32_t last) {
  const CallKv& kv = call.kv;
  const bool q8 = kv.type == KvType::kQ8;
  std::vector<float> scores;
  KvRow row;
  for (uint32_t p = first; p <= last; ++p) {
    LoadKv(kv, kv.k + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens, kv.head_dim,
           &row);
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
    LoadKv(kv, kv.v + sequence.pages[p / kPageTokens] * kv.page_stride, kv_head, p % kPageTokens,
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
