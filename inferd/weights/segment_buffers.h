// weightd's segments as buffers of a backend: imports each segment when it is mapped, so that a lease is a
// device address without a copy.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class SegmentBuffers final : public SegmentObserver {
 public:
  // `backend` outlives this object.
  explicit SegmentBuffers(Backend* backend) : backend_(backend) {}

  absl::Status OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) override;
  void OnSegmentUnmapped(uint32_t segment) override;

  // Location of a leased extent; no buffer if its segment was never announced.
  BufferRef Place(const ExtentLease& lease) const;

 private:
  Backend* const backend_;
  absl::flat_hash_map<uint32_t, BufferId> buffers_;  // by segment
};

}  // namespace sluice::inferd
