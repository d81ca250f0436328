// RopeKvWrite, LatentKvWrite, IndexSelect and Attention: the rows of each sequence are tiles of one region.

#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/ops.h"
#include "kernels/scalar_math.h"

namespace sluice::cpu {

namespace {

// Applies everything but the temperature to one row of `heads` heads.
void TransformHeads(const KernelTable& kernels, const RopeKvWriteCall& call, const CallNorm& norm,
                    uint32_t heads, const float* cos_sin, float* row) {
  const uint32_t head_dim = call.kv.head_dim;
  const uint32_t half = call.rope_dims / 2;
  if (call.qk_norm == QkNorm::kAcrossHeads) {
    NormRow(kernels, norm, row, heads * head_dim, row);
  }
  const bool norms_heads = call.qk_norm == QkNorm::kPerHead || call.qk_norm == QkNorm::kWeightedKey;
  if (call.clip > 0 && !norms_heads) {
    kernels.clip(row, heads * head_dim, call.clip);
  }
  for (uint32_t h = 0; h < heads; ++h) {
    float* head = row + uint64_t{h} * head_dim;
    if (norms_heads) {
      NormRow(kernels, norm, head, head_dim, head);
      if (call.clip > 0) {
        kernels.clip(head, head_dim, call.clip);
      }
    }
    kernels.rope(head + call.rope_offset, cos_sin, cos_sin + half, half, call.rope_interleaved);
    if (call.qk_norm == QkNorm::kPerHeadAfterRope || call.qk_norm == QkNorm::kWeightedAfterRope) {
      NormRow(kernels, norm, head, head_dim, head);
    }
  }
}

// Multiplies the q of a row by its position's temperature, if there is one.
template <class Call>
void ApplyTemperature(const KernelTable& kernels, const Call& call, uint32_t position, uint32_t cols,
                      float* q) {
  if (call.temperature_scale == 0) {
    return;
  }
  const float temperature =
      TemperatureAt(position, call.temperature_scale, call.temperature_floor, call.temperature_offset);
  kernels.decode[static_cast<int>(RowKind::kF32)](reinterpret_cast<const uint8_t*>(q), cols, temperature, q);
}

// Writes one head's `dim` values into a page of K or V.
void StoreHead(const KernelTable& kernels, const CallKv& kv, uint32_t dim, uint8_t* page, uint32_t head,
               uint32_t token, const float* values) {
  const float scale = kernels.store_kv(kv.type, values, dim, page + KvRowOffset(kv.type, dim, head, token));
  if (kv.type == KvType::kQ8) {
    std::memcpy(page + KvScaleOffset(kv.kv_heads, dim, head, token), &scale, sizeof scale);
  }
}

}  // namespace

void Run(Device& d, const RopeKvWriteCall& call) {
  const CallKv& kv = call.kv;
  const uint32_t q_cols = call.heads * kv.head_dim;
  const uint32_t cols = kv.kv_heads * kv.head_dim;
  const uint32_t v_heads = call.v.base == nullptr ? 0 : kv.kv_heads;
  const uint32_t v_cols = v_heads * kv.value_dim;
  const uint64_t row_work = (uint64_t{q_cols} + cols + v_cols) * 4;
  for (const SequenceRows& sequence : call.sequences) {
    d.tiles.Run(sequence.rows, row_work * sequence.rows, [&](uint32_t i, uint32_t worker) {
      const uint32_t position = sequence.first_position + i;
      const uint32_t t = sequence.first_row + i;
      const float* cos_sin = call.rope_table + uint64_t{position} * call.rope_dims;
      float* q = call.q.Row(t);
      TransformHeads(d.kernels, call, call.q_norm, call.heads, cos_sin, q);
      ApplyTemperature(d.kernels, call, position, q_cols, q);
      const uint32_t page = sequence.pages[position / kPageTokens];
      uint8_t* k_page = kv.k + page * kv.page_stride;
      uint8_t* v_page = kv.v + page * kv.v_page_stride;
      float* row = d.space.workers[worker].any;
      std::memcpy(row, call.k.Row(t), cols * sizeof(float));
      TransformHeads(d.kernels, call, call.k_norm, kv.kv_heads, cos_sin, row);
      for (uint32_t h = 0; h < kv.kv_heads; ++h) {
        StoreHead(d.kernels, kv, kv.head_dim, k_page, h, position % kPageTokens,
                  row + uint64_t{h} * kv.head_dim);
      }
      const float* v = call.v.Row(t);
      for (uint32_t h = 0; h < kv.kv_heads && call.value_norm; ++h) {
        const uint64_t head = uint64_t{h} * kv.value_dim;
        d.kernels.rms_norm(call.v.Row(t) + head, kv.value_dim, nullptr, call.k_norm.epsilon, row + head);
        v = row;
      }
      if (call.clip > 0) {
        std::memmove(row, v, v_cols * sizeof(float));
        d.kernels.clip(row, v_cols, call.clip);
        v = row;
      }
      for (uint32_t h = 0; h < v_heads; ++h) {
        StoreHead(d.kernels, kv, kv.value_dim, v_page, h, position % kPageTokens,
                  v + uint64_t{h} * kv.value_dim);
      }
    });
  }
}

void Run(Device& d, const LatentKvWriteCall& call) {
  const uint32_t half = call.rope_dims / 2;
  const uint32_t row_cols = call.kv_rank + call.rope_dims;
  const uint64_t row_work = (uint64_t{call.heads} * call.rope_dims + row_cols) * 4;
  for (const SequenceRows& sequence : call.sequences) {
    d.tiles.Run(sequence.rows, row_work * sequence.rows, [&](uint32_t i, uint32_t worker) {
      const uint32_t position = sequence.first_position + i;
      const uint32_t t = sequence.first_row + i;
      const float* cos_sin = call.rope_table + uint64_t{position} * call.rope_dims;
      for (uint32_t h = 0; h < call.heads; ++h) {
        const float* q = call.q.Row(t) + uint64_t{h} * (call.nope_dim + call.rope_dims) + call.nope_dim;
        float* out = call.q_out.Row(t) + uint64_t{h} * row_cols + call.kv_rank;
        std::memcpy(out, q, call.rope_dims * sizeof(float));
        d.kernels.rope(out, cos_sin, cos_sin + half, half, call.rope_interleaved);
      }
      ApplyTemperature(d.kernels, call, position, call.heads * row_cols, call.q_out.Row(t));
      float* row = d.space.workers[worker].any;
      std::memcpy(row, call.latent.Row(t), row_cols * sizeof(float));
      if (call.norm.weight != nullptr) {
        NormRow(d.kernels, call.norm, row, call.kv_rank, row);
      }
      d.kernels.rope(row + call.kv_rank, cos_sin, cos_sin + half, half, call.rope_interleaved);
      StoreHead(d.kernels, call.kv, call.kv.head_dim,
                call.kv.k + sequence.pages[position / kPageTokens] * call.kv.page_stride, 0,
                position % kPageTokens, row);
    });
  }
}

// The parts of these names compute the others.

void Run(Device& d, const IndexSelectCall& call) { d.index_select.Run(call); }

void Run(Device& d, const AttentionCall& call) { d.attention.Run(call); }

}  // namespace sluice::cpu
