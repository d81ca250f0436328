#include "inferd/weights/device_slab.h"

#include "common/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<DeviceSlab>> DeviceSlab::Create(uint64_t bytes, Backend* backend) {
  ASSIGN_OR_RETURN(const SharedBuffer memory, backend->AllocateShared(bytes));
  return std::unique_ptr<DeviceSlab>(new DeviceSlab(backend, memory));
}

DeviceSlab::~DeviceSlab() { backend_->Free(memory_.buffer).IgnoreError(); }  // the id is ours

absl::Status DeviceSlab::Offer(double link_gbps, double link_latency_us, WeightClient* client) {
  const uint64_t session = client->counters().reconnects;
  if (offered_in_ == session) {
    return absl::OkStatus();
  }
  SlabOffer offer;
  offer.fd = memory_.fd;
  offer.bytes = memory_.bytes;
  offer.kind = memory_.kind;
  offer.device = memory_.device;
  offer.link_gbps = link_gbps;
  offer.link_latency_us = link_latency_us;
  ASSIGN_OR_RETURN(number_, client->OfferSlab(offer));
  offered_in_ = session;
  return absl::OkStatus();
}

}  // namespace sluice
