// Sequences of inputs and a paged cache that runs them through RopeKvWrite and Attention.
//
// Thread safety: for single-threaded tests.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/op_testing.h"

namespace sluice {

struct AttentionShape {
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 32;
  KvType type = KvType::kF16;
  uint32_t window = 0;
  uint32_t rope_dims = 32;
  bool interleaved = false;
  QkNorm qk_norm = QkNorm::kNone;
  float clip = 0;
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 1;
  uint32_t chunk = 0;
  bool sinks = false;
  bool value_norm = false;
  bool value_is_key = false;
  uint32_t value_dim = 0;  // 0: head_dim

  uint32_t ValueDim() const { return value_dim > 0 ? value_dim : head_dim; }
  bool HasWeights() const {
    return qk_norm == QkNorm::kPerHead || qk_norm == QkNorm::kAcrossHeads ||
           qk_norm == QkNorm::kWeightedAfterRope;
  }
  // The weights of a norm of q or k (`count` heads), and the sinks: made from the shape.
  std::vector<float> NormWeights(uint32_t count) const {
    return Random(77).Normals(qk_norm == QkNorm::kAcrossHeads ? count * head_dim : head_dim);
  }
  std::vector<float> Sinks() const { return Random(78).Normals(heads, 2.0f); }
};

// The inputs of one sequence for every position, made from its seed, so that they do not depend on the
// chunking.
struct AttentionInputs {
  uint32_t positions = 0;
  std::vector<float> q, k, v;  // [positions, heads or kv_heads, head_dim or value_dim]
};

AttentionInputs MakeInputs(const AttentionShape& c, uint32_t positions, uint64_t seed);

// Runs sequences through one cache.
class AttentionCache {
 public:
  AttentionCache(const BackendCase& which, const AttentionShape& config,
                 const std::vector<AttentionInputs>& sequences);

  // Computes the next `rows[i]` positions of sequence order[i], in this order of batch rows.
  void Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows);

  // Runs one sequence to its end in chunks.
  void RunAlone(uint32_t s, uint32_t chunk);

  const std::vector<float>& Output(size_t s) const { return outputs_[s]; }

 private:
  uint64_t QCols() const { return uint64_t{config_.heads} * config_.head_dim; }
  uint64_t KvCols() const { return uint64_t{config_.kv_heads} * config_.head_dim; }
  uint64_t VCols() const { return uint64_t{config_.kv_heads} * config_.ValueDim(); }
  uint64_t OutCols() const { return uint64_t{config_.heads} * config_.ValueDim(); }
  static void Append(const std::vector<float>& from, uint64_t cols, uint32_t first, uint32_t rows,
                     std::vector<float>* to) {
    to->insert(to->end(), from.begin() + static_cast<int64_t>(first * cols),
               from.begin() + static_cast<int64_t>((first + rows) * cols));
  }

  OpBench bench_;
  const AttentionShape config_;
  const std::vector<AttentionInputs> sequences_;
  std::vector<std::vector<float>> outputs_;
  std::vector<uint32_t> next_;
  std::vector<std::vector<uint32_t>> pages_;
  KvView kv_;
  BufferRef rope_table_, q_norm_, k_norm_, sinks_;
};

}  // namespace sluice
