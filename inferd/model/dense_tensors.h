// The dense tensors of a pack by purpose: the tensors that a configuration needs, and the views that the
// forward pass reads. Shapes are in common/model/dense_names.h.
//
// Thread safety: plain values; the function is pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "pack/pack.h"

namespace sluice::inferd {

// An expert in dense tensors: a shared one, or the FFN of a layer without routed experts.
struct DenseExpert {
  WeightView up;    // [width, hidden], all three
  WeightView gate;  // empty without gates
  WeightView down;  // stored transposed
};

// The dense tensors of one layer; a view or reference is empty if the layer has no such tensor (shapes:
// dense_names.h).
struct LayerWeights {
  NormSpec attn_norm;
  WeightView q;  // latent attention: from the compressed q, if there is one
  WeightView q_gate;
  WeightView k;
  WeightView v;
  WeightView o;
  BufferRef q_bias;
  BufferRef k_bias;
  BufferRef v_bias;
  BufferRef o_bias;
  NormSpec q_norm;
  NormSpec k_norm;
  BufferRef sinks;

  WeightView q_down;  // latent attention
  NormSpec q_down_norm;
  WeightView kv_down;
  NormSpec kv_down_norm;
  WeightView k_up_t;
  WeightView v_up;

  WeightView delta_qkv;  // gated delta attention
  WeightView delta_z;
  WeightView delta_beta;
  WeightView delta_decay;
  WeightView delta_conv;  // f32 [conv_cols, conv_kernel]
  BufferRef delta_a_log;
  BufferRef delta_dt_bias;
  NormSpec delta_norm;

  WeightView mamba_z;  // Mamba-2
  WeightView mamba_xbc;
  WeightView mamba_dt;
  WeightView mamba_conv;  // f32 [conv_kernel, conv_cols]
  BufferRef mamba_conv_bias;
  BufferRef mamba_a_log;
  BufferRef mamba_dt_bias;
  BufferRef mamba_d;
  NormSpec mamba_norm;

  WeightView conv_in;      // short convolution
  WeightView conv_kernel;  // f32 [kernel, width]

  NormSpec attn_post_norm;  // norm of attention's output
  NormSpec ffn_norm;
  NormSpec ffn_post_norm;  // norm of the FFN or MoE output
  BufferRef layer_scale;   // f32 [1]

  NormSpec router_norm;  // with a parallel dense FFN
  NormSpec experts_norm;
  NormSpec experts_post_norm;
  NormSpec beside_post_norm;
  DenseExpert beside;

  WeightView router;
  BufferRef router_bias;
  BufferRef router_correction;
  BufferRef expert_scale;  // f32 [experts]
  WeightView shared_router;
  WeightView up_biases;    // f32 [experts, expert_width]
  WeightView gate_biases;  // f32 [experts, expert_width]
  WeightView down_biases;  // f32 [experts, hidden]
  DenseExpert common;      // the common expert: the shared expert or the dense FFN

  // Norm of the residual for the router and the experts.
  const NormSpec& RouterNorm() const { return router_norm.weight ? router_norm : ffn_norm; }
  const NormSpec& ExpertsNorm() const { return experts_norm.weight ? experts_norm : ffn_norm; }
};

struct DenseTensors {
  // A reference that is set once its tensor's extent is leased.
  struct Placed {
    const DenseTensor* tensor = nullptr;
    BufferRef* place = nullptr;  // points into this object
  };

  WeightView embed;
  WeightView head;
  BufferRef head_bias;
  NormSpec final_norm;
  std::vector<LayerWeights> layers;
  std::vector<Placed> placed;
  // Bytes that every step reads: all tensors except the embedding rows.
  uint64_t bytes_per_step = 0;
};

// Finds the tensors that the pack's configuration needs, checks their shapes and fills `tensors`, which must
// not move afterwards. DATA_LOSS naming the tensor that is missing or has another shape.
absl::Status FindDenseTensors(const Pack& pack, DenseTensors* tensors);

}  // namespace sluice::inferd
