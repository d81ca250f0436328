// ARITHMETIC.md section 11: compressed entries, and attention over a window and them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {

void Run(Device&, const RopeHeadsCall& call) {
  std::vector<float> cos_sin(call.rope.dims);
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      std::copy_n(call.rope.At(sequence.first_position + i), call.rope.dims, cos_sin.begin());
      for (uint32_t j = call.rope.dims / 2; j < call.rope.dims && call.back; ++j) {
        cos_sin[j] = -cos_sin[j];
      }
      for (uint32_t h = 0; h < call.heads; ++h) {
        RopeHead(cos_sin.data(), call.rope.dims, call.rope.interleaved,
                 call.x.Row(sequence.first_row + i) + uint64_t{h} * call.head_dim + call.rope.offset);
      }
    }
  }
}

void Run(Device&, const CompressCall& call) {
  const uint32_t dim = call.entries.head_dim;
  const uint32_t rate = call.entries.rate;
  const auto exp_all = [](float* x, uint32_t n) { std::transform(x, x + n, x, Exp); };
  std::vector<float> scratch(4 * uint64_t{dim});
  std::vector<float> entry(dim);
  for (size_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    const uint32_t end = sequence.first_position + sequence.rows;
    for (uint32_t e = sequence.first_position / rate; e < end / rate; ++e) {
      CompressEntry(call, i, e, exp_all, scratch.data(), entry.data());
      if (call.norm.weight != nullptr) {
        NormRow(call.norm, entry.data(), dim, entry.data());
      }
      RopeHead(call.rope.At(e * rate), call.rope.dims, call.rope.interleaved,
               entry.data() + call.rope.offset);
      const uint8_t* place = nullptr;
      uint8_t* const row = call.entries.Row(sequence, e, &place);
      const float scale = StoreKvRow(call.entries.type, entry.data(), dim, row);
      if (call.entries.type == KvType::kQ8) {
        std::memcpy(const_cast<uint8_t*>(place), &scale, sizeof scale);
      }
    }
    KeepSources(call, i);
  }
}

namespace {

struct KeySum {
  float m = 0;
  float l = 0;
  std::vector<float> o;
};

void AppendSum(const KeySum& next, KeySum* sum) {
  if (sum->o.empty()) {
    *sum = next;
    return;
  }
  const float m = std::max(sum->m, next.m);
  const float a = Exp(sum->m - m);
  const float b = Exp(next.m - m);
  sum->l = std::fma(next.l, b, sum->l * a);
  for (size_t d = 0; d < sum->o.size(); ++d) {
    sum->o[d] = std::fma(next.o[d], b, sum->o[d] * a);
  }
  sum->m = m;
}

// The softmax-weighted sum over keys [first, last] of a row's list, not yet divided.
KeySum SumKeys(const CompressedAttentionCall& call, const SequenceRows& sequence,
               const CompressedAttentionCall::Keys& keys, const float* q, uint32_t first, uint32_t last) {
  const uint32_t dim = call.kv.head_dim;
  const bool q8 = call.kv.type == KvType::kQ8;
  std::vector<std::vector<float>> rows;
  std::vector<float> scales;
  std::vector<float> scores;
  for (uint32_t i = first; i <= last; ++i) {
    float scale = 1;
    std::vector<float>& row = rows.emplace_back(dim);
    LoadKvRow(call.kv.type, call.KeyAt(sequence, keys, i, &scale), dim, row.data());
    LaneSum dot;
    for (uint32_t d = 0; d < dim; ++d) {
      dot.AddProduct(d, q[d], row[d]);
    }
    scores.push_back((q8 ? dot.Total() * scale : dot.Total()) * call.scale);
    scales.push_back(scale);
  }
  KeySum sum{*std::max_element(scores.begin(), scores.end()), 0, std::vector<float>(dim, 0.0f)};
  LaneSum l;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const float e = Exp(scores[i] - sum.m);
    l.Add(first + i, e);
    for (uint32_t d = 0; d < dim; ++d) {
      sum.o[d] = std::fma(q8 ? e * scales[i] : e, rows[i][d], sum.o[d]);
    }
  }
  sum.l = l.Total();
  for (float& value : sum.o) {
    value += 0.0f;
  }
  return sum;
}

}  // namespace

void Run(Device&, const CompressedAttentionCall& call) {
  const uint32_t dim = call.kv.head_dim;
  for (const SequenceRows& sequence : call.sequences) {
    for (uint32_t i = 0; i < sequence.rows; ++i) {
      const uint32_t t = sequence.first_row + i;
      const uint32_t position = sequence.first_position + i;
      const CompressedAttentionCall::Keys keys = call.KeysOf(t, position);
      for (uint32_t h = 0; h < call.heads; ++h) {
        const float* q = call.q.Row(t) + uint64_t{h} * dim;
        KeySum sum;
        for (uint32_t first = 0; first < keys.size(); first += kSpanTokens) {
          AppendSum(SumKeys(call, sequence, keys, q, first, std::min(first + kSpanTokens, keys.size()) - 1),
                    &sum);
        }
        if (call.sinks != nullptr) {
          AppendSum({call.sinks[h], 1.0f, std::vector<float>(dim, 0.0f)}, &sum);
        }
        float* out = call.out.Row(t) + uint64_t{h} * dim;
        for (uint32_t d = 0; d < dim; ++d) {
          out[d] = sum.o[d] / sum.l;
        }
      }
    }
  }
}

}  // namespace sluice::reference
