// Device memory that holds weightd's bytes: its segments as buffers of a backend (SegmentBuffers), and memory
// that weightd writes weights into (DeviceSlab).
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// Imports each of weightd's segments when it is mapped, so that a lease is a device address without a copy.
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

// A piece of device memory that weightd writes weights into: allocated once, offered to every session.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class DeviceSlab {
 public:
  // `backend` outlives the slab, as does every client that it is offered to. Errors of the backend.
  static absl::StatusOr<std::unique_ptr<DeviceSlab>> Create(uint64_t bytes, Backend* backend);
  // Revokes the memory before it is freed (WeightClient::RevokeSlabs), which ends the client's session.
  ~DeviceSlab();
  DeviceSlab(const DeviceSlab&) = delete;
  DeviceSlab& operator=(const DeviceSlab&) = delete;

  // Lets weightd write into the slab until the session ends, at the link's rate (0: unthrottled). Does
  // nothing if it was offered to this session before: one file is one slab.
  absl::Status Offer(double link_gbps, double link_latency_us, WeightClient* client);

  BufferId buffer() const { return memory_.buffer; }
  HandleKind kind() const { return memory_.kind; }
  // weightd's number of the slab, once it was offered.
  uint32_t number() const { return number_; }

 private:
  DeviceSlab(Backend* backend, const SharedBuffer& memory) : backend_(backend), memory_(memory) {}

  Backend* const backend_;
  const SharedBuffer memory_;
  WeightClient* client_ = nullptr;  // the client of the last offer
  uint32_t number_ = 0;
  std::optional<uint64_t> offered_in_;  // the client's number of reconnects at the last offer
};

}  // namespace sluice::inferd
