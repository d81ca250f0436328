// The dense part of a model (embeddings, attention, norms, routers, head) as weight views on leased extents.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#ifndef SLUICE_INFERD_DENSE_WEIGHTS_H_
#define SLUICE_INFERD_DENSE_WEIGHTS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/pack/pack.h"
#include "inferd/residency/fetch_queue.h"
#include "inferd/residency/segment_buffers.h"
#include "inferd/weight_client.h"
#include "kernels/ops.h"

namespace sluice {

// The dense tensors of one layer.
struct LayerWeights {
  NormSpec attn_norm;  // [hidden]
  WeightView q;        // [heads * head_dim, hidden]
  WeightView k;        // [kv_heads * head_dim, hidden]
  WeightView v;        // [kv_heads * head_dim, hidden]
  WeightView o;        // [hidden, heads * head_dim]
  BufferRef q_bias;    // none unless the family has them
  BufferRef k_bias;
  BufferRef v_bias;
  BufferRef o_bias;
  NormSpec q_norm;
  NormSpec k_norm;
  NormSpec ffn_norm;  // [hidden]
  WeightView router;  // [experts, hidden]
};

class DenseWeights {
 public:
  // Finds the tensors that the configuration calls for and checks their shapes. DATA_LOSS naming the tensor
  // that is missing or has another shape. All arguments outlive the object.
  static absl::StatusOr<std::unique_ptr<DenseWeights>> Create(WeightClient* client, FetchQueue* fetches,
                                                              const SegmentBuffers* segments);

  // Leases every dense extent, fetching what is not resident. Gives everything back on an error: UNAVAILABLE
  // (weightd is gone), DATA_LOSS naming the extent (reason WEIGHT_CORRUPT), RESOURCE_EXHAUSTED with the bytes
  // when weightd has no room for them or nothing came for `stall_limit`.
  absl::Status Acquire(absl::Duration stall_limit);

  // Gives every lease back; the views must not be used until the next Acquire.
  void Release();

  bool acquired() const { return acquired_; }
  uint64_t held() const { return held_; }

  const WeightView& embed() const { return embed_; }
  const WeightView& head() const { return head_; }
  const NormSpec& final_norm() const { return final_norm_; }
  const LayerWeights& layer(uint32_t layer) const { return layers_[layer]; }

  // Bytes that a step reads whatever its tokens are: everything but the embedding rows.
  uint64_t bytes_per_step() const { return bytes_per_step_; }

 private:
  // Where a view's place goes once the extent is leased.
  struct Placed {
    const DenseTensor* tensor = nullptr;
    BufferRef* place = nullptr;
  };

  DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments);
  absl::Status FindTensors();
  absl::Status FindLayer(uint32_t layer);
  absl::Status FindMatrix(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view);
  absl::Status FindVector(std::string_view name, uint32_t cols, BufferRef* place);
  absl::StatusOr<const DenseTensor*> Find(std::string_view name, uint32_t rows, uint32_t cols);
  absl::Status LeaseAll(absl::Duration stall_limit);
  bool TryLease(uint32_t extent);
  absl::Status Resolve();

  WeightClient* const client_;
  FetchQueue* const fetches_;
  const SegmentBuffers* const segments_;
  const Pack& pack_;

  enum class Extent : uint8_t { kAbsent, kRequested, kLeased };
  std::vector<Extent> extents_;      // by dense extent
  std::vector<ExtentLease> leases_;  // by dense extent
  std::vector<Placed> placed_;
  std::vector<LayerWeights> layers_;  // fixed size: placed_ points into it
  WeightView embed_;
  WeightView head_;
  NormSpec final_norm_;
  uint64_t bytes_per_step_ = 0;
  uint64_t held_ = 0;
  bool acquired_ = false;
};

}  // namespace sluice

#endif  // SLUICE_INFERD_DENSE_WEIGHTS_H_
