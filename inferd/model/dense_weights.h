// The dense tensors of a pack by purpose: the tensors that a configuration needs, and the views that the
// forward pass reads. Shapes are in common/model/dense_names.h.
//
// Thread safety: plain values; the function is pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "kernels/ops.h"
#include "pack/pack.h"

namespace sluice::inferd {

// An expert in dense tensors: a shared one, or the FFN of a layer without routed experts.
struct DenseExpert {
  WeightView up;      // [width, hidden], all three
  WeightView gate;    // empty without gates
  WeightView down;    // stored transposed, or [hidden, width] by outputs
  BufferRef up_bias;  // float32, the three; none without
  BufferRef gate_bias;
  BufferRef down_bias;
};

// The mix of residual streams before a block, or at the end.
struct StreamWeights {
  WeightView projection;
  BufferRef base;
  BufferRef scale;
  // Gated streams have these instead.
  BufferRef norm;  // f32 [streams * hidden]
  WeightView down;
  WeightView up;
  WeightView add;  // none at the end
};

// Hashed n-grams before a layer, but for the table of their rows (row_source.h); norms: f32 [streams *
// hidden].
struct NgramWeights {
  WeightView key;
  WeightView value;
  BufferRef key_norm;
  BufferRef query_norm;
  BufferRef conv_norm;
  WeightView conv;  // f32 [kernel, streams * hidden]
};

// The dense tensors of one layer; a view or reference is empty if the layer has no such tensor (shapes:
// dense_names.h).
struct LayerWeights {
  StreamWeights attn_streams;
  StreamWeights ffn_streams;
  NgramWeights ngrams;

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

  WeightView index_q;  // an indexer of the layer's own
  WeightView index_k;
  WeightView index_gates;  // these two: a pooled one
  WeightView index_bias;   // f32 [block, PooledWidth]
  WeightView index_weights;
  NormSpec index_q_norm;
  NormSpec index_k_norm;  // a layer norm where choices are weighted

  WeightView o_groups;  // attention with compressed entries; its q is made of q_down
  WeightView entry_values;
  WeightView entry_gates;
  WeightView entry_bias;  // f32 [rate, CompressedWidth]
  NormSpec entry_norm;

  WeightView delta_qkv;  // gated delta attention
  WeightView delta_z;
  WeightView delta_beta;
  WeightView delta_decay;
  WeightView delta_z_down;  // empty unless these have a rank
  WeightView delta_decay_down;
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
  BufferRef conv_in_bias;
  BufferRef conv_bias;

  WeightView selective_x;  // Mamba-1
  WeightView selective_z;
  WeightView selective_conv;  // f32 [conv_kernel, channels]
  BufferRef selective_conv_bias;
  WeightView selective_step_down;
  WeightView selective_b;
  WeightView selective_c;
  NormSpec selective_step_norm;
  NormSpec selective_b_norm;
  NormSpec selective_c_norm;
  WeightView selective_step;
  BufferRef selective_step_bias;
  WeightView selective_a_log;  // f32 [state, channels]
  BufferRef selective_d;

  NormSpec attn_post_norm;  // norm of attention's output
  NormSpec ffn_norm;
  NormSpec ffn_post_norm;  // norm of the FFN or MoE output
  BufferRef layer_scale;   // f32 [1]

  WeightView mtp_embed;  // MTP layers
  WeightView mtp_hidden;
  NormSpec mtp_embed_norm;
  NormSpec mtp_hidden_norm;
  NormSpec mtp_norm;

  WeightView latent_down;  // projections to and from the routed experts' width
  WeightView latent_up;

  NormSpec router_norm;  // with a parallel dense FFN
  NormSpec experts_norm;
  NormSpec experts_post_norm;
  NormSpec beside_post_norm;
  DenseExpert beside;  // the parallel dense FFN, or the shared expert apart

  WeightView router;
  BufferRef router_bias;
  BufferRef router_correction;
  WeightView token_experts;  // f32 [vocab, top_k]
  BufferRef expert_scale;    // f32 [experts]
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
  StreamWeights head_streams;
  NormSpec final_norm;
  std::vector<LayerWeights> layers;
  std::vector<Placed> placed;
  // Bytes that every step reads: all tensors except the embedding rows and the MTP layers.
  uint64_t bytes_per_step = 0;
};

// Finds the tensors that the pack's configuration needs, checks their shapes and fills `tensors`, which must
// not move afterwards. DATA_LOSS naming the tensor that is missing or has another shape.
absl::Status FindDenseTensors(const Pack& pack, DenseTensors* tensors);

// The dense part of a model (embeddings, attention, norms, routers, head) as weight views: on extents leased
// in weightd's DRAM, or, on a device with its own memory, in a slab into which they are copied once. The slab
// belongs to inferd, so its content outlives the weightd session.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class DenseWeights {
 public:
  // Errors of FindDenseTensors, and of the backend. All arguments outlive the object. `device`: the weights
  // are copied into its memory; null: they are read in place.
  static absl::StatusOr<std::unique_ptr<DenseWeights>> Create(WeightClient* client, FetchQueue* fetches,
                                                              const SegmentBuffers* segments,
                                                              Backend* device);

  // Leases every dense extent, fetching missing ones, or copies the missing ones to the device. Releases
  // everything on an error: UNAVAILABLE (weightd is gone), DATA_LOSS naming the extent (reason
  // WEIGHT_CORRUPT), RESOURCE_EXHAUSTED with the bytes when weightd has no room for them (reason
  // DRAM_TOO_SMALL) or nothing arrived for `stall_limit` and as long as the largest extent takes a disk of
  // 8 MiB/s (StallLimit).
  absl::Status Acquire(absl::Duration stall_limit);

  // Releases every lease; the views must not be used until the next Acquire(). Weights copied to a device
  // stay.
  void Release();

  bool acquired() const { return acquired_; }
  uint64_t leases() const { return slab_ == nullptr ? held_ : 0; }
  // Bytes on the device; 0: the weights are leased.
  static uint64_t DeviceBytes(const Pack& pack);

  const WeightView& embed() const { return tensors_.embed; }
  const WeightView& head() const { return tensors_.head; }
  BufferRef head_bias() const { return tensors_.head_bias; }
  const StreamWeights& head_streams() const { return tensors_.head_streams; }
  const NormSpec& final_norm() const { return tensors_.final_norm; }
  const LayerWeights& layer(uint32_t layer) const { return tensors_.layers[layer]; }
  const std::vector<LayerWeights>& layers() const { return tensors_.layers; }

  // True if down matrices, those of routed experts too, are by outputs (MoeExpertsArgs).
  bool down_by_outputs() const { return pack_.by_outputs(); }

  // Bytes that every step reads: all tensors except the embedding rows and the MTP layers.
  uint64_t bytes_per_step() const { return tensors_.bytes_per_step; }

 private:
  DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments);
  absl::Status HoldAll(absl::Duration stall_limit);
  absl::Duration SlowestRead() const;
  // True if the extent is held: leased, or on the device.
  bool TryLease(uint32_t extent);
  bool OnFetched(uint32_t extent);
  void Hold(uint32_t extent);
  absl::Status Fetch(uint32_t extent);
  absl::Status NoRoomError() const;
  absl::Status StallError(absl::Duration stall_limit) const;
  absl::Status Resolve();

  WeightClient* const client_;
  FetchQueue* const fetches_;
  const SegmentBuffers* const segments_;
  const Pack& pack_;

  enum class Extent : uint8_t { kAbsent, kRequested, kHeld };
  std::vector<Extent> extents_;       // by dense extent, like the next two
  std::vector<ExtentLease> leases_;   // used without a slab
  std::vector<uint64_t> offsets_;     // offsets in the slab
  std::unique_ptr<DeviceSlab> slab_;  // null: they are leased
  DenseTensors tensors_;
  uint64_t held_ = 0;
  bool acquired_ = false;
};

}  // namespace sluice::inferd
