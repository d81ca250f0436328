// A piece of device memory that weightd writes weights into: allocated once, offered to every session.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"

namespace sluice {

class DeviceSlab {
 public:
  // `backend` outlives the slab, as does every client that it is offered to. Errors of the backend.
  static absl::StatusOr<std::unique_ptr<DeviceSlab>> Create(uint64_t bytes, Backend* backend);
  // Takes the memory back before it is freed (WeightClient::TakeSlabsBack), which ends the client's session.
  ~DeviceSlab();
  DeviceSlab(const DeviceSlab&) = delete;
  DeviceSlab& operator=(const DeviceSlab&) = delete;

  // weightd may write into the slab from here on until the session ends, as fast as the link goes (0: as it
  // can). Nothing happens if it was offered to this session before: one file is one slab.
  absl::Status Offer(double link_gbps, double link_latency_us, WeightClient* client);

  BufferId buffer() const { return memory_.buffer; }
  HandleKind kind() const { return memory_.kind; }
  // weightd's number of it, once it was offered.
  uint32_t number() const { return number_; }

 private:
  DeviceSlab(Backend* backend, const SharedBuffer& memory) : backend_(backend), memory_(memory) {}

  Backend* const backend_;
  const SharedBuffer memory_;
  WeightClient* client_ = nullptr;  // that it was last offered to
  uint32_t number_ = 0;
  std::optional<uint64_t> offered_in_;  // after so many reconnects of the client
};

}  // namespace sluice
