// The dense part of a model (embeddings, attention, norms, routers, head) as weight views: on extents leased
// in weightd's DRAM, or, on a device with its own memory, in a slab into which they are copied once. The slab
// belongs to inferd, so its content outlives the weightd session.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/model/dense_tensors.h"
#include "inferd/weights/device_slab.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/segment_buffers.h"
#include "inferd/weights/weight_client.h"
#include "kernels/ops.h"
#include "pack/pack.h"

namespace sluice::inferd {

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
  // DRAM_TOO_SMALL) or nothing arrived for `stall_limit` (StallLimit).
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
  const NormSpec& final_norm() const { return tensors_.final_norm; }
  const LayerWeights& layer(uint32_t layer) const { return tensors_.layers[layer]; }
  const std::vector<LayerWeights>& layers() const { return tensors_.layers; }

  // Bytes that every step reads: all tensors except the embedding rows.
  uint64_t bytes_per_step() const { return tensors_.bytes_per_step; }

 private:
  DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments);
  absl::Status HoldAll(absl::Duration stall_limit);
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
