// The operations of ops.h with every place resolved to memory and every requirement checked: what reference
// and host implement. Made by CpuBackend (cpu_backend.h); valid during the call only.
//
// Thread safety: plain values; a call's inputs may be read, and disjoint rows of its outputs written, by
// several threads.
#ifndef SLUICE_KERNELS_COMMON_CALLS_H_
#define SLUICE_KERNELS_COMMON_CALLS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/ops.h"

namespace sluice {

// Float rows; Row(i) has the length that the operation says.
struct InRows {
  const float* base = nullptr;
  uint64_t stride = 0;  // floats
  const float* Row(uint64_t i) const { return base + i * stride; }
};
struct OutRows {
  float* base = nullptr;
  uint64_t stride = 0;
  float* Row(uint64_t i) const { return base + i * stride; }
};

// An encoded matrix. Row(i) is nullptr for an absent row.
struct CpuWeights {
  EncodingDescriptor encoding;
  const uint8_t* base = nullptr;
  uint64_t stride = 0;  // bytes
  uint32_t rows = 0;
  uint32_t cols = 0;
  const int32_t* positions = nullptr;
  const uint8_t* Row(uint32_t i) const {
    if (positions == nullptr) {
      return base + i * stride;
    }
    return positions[i] < 0 ? nullptr : base + static_cast<uint64_t>(positions[i]) * stride;
  }
};

struct CpuNorm {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // nullptr: no norm
  const float* bias = nullptr;    // kLayer: nullptr: none
  float epsilon = 0;
};

struct EmbedCall {
  absl::Span<const int32_t> ids;
  CpuWeights table;
  float scale = 1;
  OutRows y;
};

struct NormCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  CpuNorm norm;
  OutRows y;
};

struct MatMulCallPart {
  CpuWeights weights;
  OutRows y;
  const float* bias = nullptr;
  float scale = 1;
};
inline constexpr uint32_t kMaxMatMulParts = 8;  // q, k, v and room for fused families

struct MatMulCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  absl::Span<const uint32_t> row_ids;
  CpuNorm norm;
  MatMulCallPart parts[kMaxMatMulParts];
  uint32_t part_count = 0;
  InRows residual;  // base nullptr: none
  const float* XRow(uint32_t t) const { return x.Row(row_ids.empty() ? t : row_ids[t]); }
};

struct CpuKv {
  KvType type = KvType::kF16;
  uint8_t* k = nullptr;  // written by RopeKv and LatentKv only
  uint8_t* v = nullptr;  // k where values lie within K rows
  uint64_t page_stride = 0;
  uint32_t pages = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;  // head_dim; less: values lie within K rows
};

struct RopeKvCall {
  OutRows q;
  InRows k;
  InRows v;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  QkNorm qk_norm = QkNorm::kNone;
  CpuNorm q_norm;
  CpuNorm k_norm;
  float clip = 0;  // 0: none
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  CpuKv kv;
};

struct LatentKvCall {
  InRows q;
  uint32_t nope_dim = 0;
  InRows latent;
  OutRows q_out;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t kv_rank = 0;
  CpuNorm norm;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  CpuKv kv;
};

struct AttentionCall {
  InRows q;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 0;
  uint32_t sliding_window = 0;
  uint32_t chunk = 0;
  const float* sinks = nullptr;  // [heads], nullptr: none
  absl::Span<const SequenceRows> sequences;
  CpuKv kv;
  OutRows out;
};

// The first position that the query at `position` sees; never less for a later one.
inline uint32_t FirstVisible(uint32_t position, uint32_t sliding_window, uint32_t chunk) {
  const uint32_t window =
      sliding_window == 0 || position < sliding_window ? 0 : position - sliding_window + 1;
  const uint32_t chunk_start = chunk == 0 ? 0 : position / chunk * chunk;
  return window > chunk_start ? window : chunk_start;
}
inline uint32_t FirstVisible(uint32_t position, const AttentionCall& call) {
  return FirstVisible(position, call.sliding_window, call.chunk);
}

struct HeadMatMulCall {
  InRows x;
  uint64_t x_head_stride = 0;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  CpuWeights weights;
  OutRows y;
  uint64_t y_head_stride = 0;
};

struct GatedDeltaCall {
  InRows qkv;
  InRows z;
  InRows beta;
  InRows decay;
  uint32_t tokens = 0;
  DeltaConfig shape;
  const float* conv = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  CpuNorm norm;
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;
  absl::Span<const uint32_t> to;
  float* states = nullptr;
  uint64_t slot_stride = 0;  // floats
  OutRows out;
  uint32_t ConvCols() const {
    return 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
  }
  // Floats of a slot before the recurrent states, and of one head's state.
  uint64_t ConvFloats() const { return uint64_t{shape.conv_kernel - 1} * ConvCols(); }
  uint64_t HeadFloats() const { return uint64_t{shape.key_dim} * shape.value_dim; }
};
inline constexpr uint32_t kMaxConvKernel = 16;

struct RouterCall {
  InRows logits;
  uint32_t tokens = 0;
  uint32_t experts = 0;
  RouterKind kind = RouterKind::kSoftmaxTopK;
  uint32_t top_k = 0;
  bool norm_topk_prob = true;
  float routed_scale = 1;
  const float* correction = nullptr;
  float jitter = 0;
  uint32_t groups = 0;  // 0: none
  uint32_t top_groups = 0;
  GroupScore group_score = GroupScore::kMax;
  bool shared = false;
  InRows shared_logits;  // base nullptr: weight 1
  int32_t* ids = nullptr;
  float* weights = nullptr;
  uint32_t Ranks() const { return top_k + (shared ? 1 : 0); }
  // Whether experts are chosen by their logits: what else chooses is in the same order or is not there.
  bool ChoosesByLogit() const {
    return kind != RouterKind::kSigmoidTopK && correction == nullptr &&
           (groups == 0 || group_score == GroupScore::kMax);
  }
};

struct SigmoidGateCall {
  OutRows x;
  InRows gate;
  uint32_t tokens = 0;
  uint32_t cols = 0;
};

struct ScaleRowsCall {
  InRows x;
  const float* weights = nullptr;  // [tokens, ranks]
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t cols = 0;
  OutRows y;
};

inline constexpr uint32_t kNeuronBlock = 64;  // ARITHMETIC.md 3

struct ExpertCall {
  CpuWeights up;
  CpuWeights gate;
  CpuWeights down;
  absl::Span<const uint32_t> rows;
  absl::Span<const uint32_t> slots;
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;
  const float* up_bias = nullptr;  // nullptr: none
  const float* gate_bias = nullptr;
  const float* down_bias = nullptr;
  SparsityOrder sparsity = SparsityOrder::kNone;
  float threshold = 0;
  InRows lead_values;  // base nullptr: to be computed
  // Whether a part has an index list, so that neurons may be absent.
  bool HasLists() const {
    return up.positions != nullptr || gate.positions != nullptr || down.positions != nullptr;
  }
  // Whether neuron j's rows are all there.
  bool Has(uint32_t j) const {
    return up.Row(j) != nullptr && gate.Row(j) != nullptr && down.Row(j) != nullptr;
  }
};

struct LeadCallPart {
  CpuWeights lead;
  absl::Span<const uint32_t> rows;
  const float* bias = nullptr;  // nullptr: none
  float threshold = 0;
  OutRows values;
  uint64_t* active = nullptr;  // nullptr: not wanted
};

struct LeadCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  bool up = false;  // the lead is up, else gate
  absl::Span<const LeadCallPart> experts;
};

struct MoeCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  absl::Span<const ExpertCall> experts;
  OutRows y;
  uint32_t slots = 0;
  uint32_t* active = nullptr;  // [slots], nullptr: not wanted
};

struct CombineCall {
  InRows y;
  const float* weights = nullptr;  // nullptr: 1 everywhere
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t hidden = 0;
  InRows residual;
  OutRows out;
  float scale = 1;
};

struct TopLogitsCall {
  InRows logits;
  uint32_t tokens = 0;
  uint32_t vocab = 0;
  uint32_t k = 0;
  int32_t* ids = nullptr;
  float* values = nullptr;
  float* log_sum_exp = nullptr;  // nullptr: not wanted
};
inline constexpr uint32_t kMaxTopLogits = 1024;

}  // namespace sluice

#endif  // SLUICE_KERNELS_COMMON_CALLS_H_
