// ARITHMETIC.md section 6: the changes of q and k, and the contents of the cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/common/scalar_math.h"
#include "kernels/kv_layout.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

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

// Writes one head's values at (page, token) of a cache side.
void StoreKv(const CallKv& kv, uint8_t* page, uint32_t kv_head, uint32_t token, const float* values) {
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
  std::vector<float> v(call.v.Row(t), call.v.Row(t) + cols);
  TransformHeads(call, call.k_norm, kv.kv_heads, cos_sin, k.data());
  for (uint32_t h = 0; h < kv.kv_heads && call.value_norm; ++h) {
    float* head = v.data() + uint64_t{h} * kv.head_dim;
    NormRow({.epsilon = call.k_norm.epsilon}, head, kv.head_dim, head);
  }
  for (uint64_t c = 0; c < cols && call.clip > 0; ++c) {
    v[c] = std::clamp(v[c], -call.clip, call.clip);
  }
  const uint64_t page = sequence.pages[position / kPageTokens] * kv.page_stride;
  for (uint32_t h = 0; h < kv.kv_heads; ++h) {
    StoreKv(kv, kv.k + page, h, position % kPageTokens, k.data() + uint64_t{h} * kv.head_dim);
    StoreKv(kv, kv.v + page, h, position % kPageTokens, v.data() + uint64_t{h} * kv.head_dim);
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
  StoreKv(call.kv, call.kv.k + sequence.pages[position / kPageTokens] * call.kv.page_stride, 0,
          position % kPageTokens, latent.data());
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

}  // namespace sluice::reference
