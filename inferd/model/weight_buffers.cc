#include "inferd/model/weight_buffers.h"

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::inferd {

absl::Status SegmentBuffers::OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) {
  const absl::StatusOr<BufferId> buffer = backend_->Import({base, bytes});
  if (!buffer.ok()) {
    return Annotate(buffer.status(), absl::StrCat("importing segment ", segment, " of ", bytes, " bytes"));
  }
  buffers_[segment] = *buffer;
  return absl::OkStatus();
}

void SegmentBuffers::OnSegmentUnmapped(uint32_t segment) {
  const auto found = buffers_.find(segment);
  if (found != buffers_.end()) {
    backend_->Free(found->second).IgnoreError();  // the id is valid, and no lease is left in the segment
    buffers_.erase(found);
  }
}

BufferRef SegmentBuffers::Place(const ExtentLease& lease) const {
  const auto found = buffers_.find(lease.segment);
  return found == buffers_.end() ? BufferRef{} : BufferRef{found->second, lease.offset};
}

namespace {

// Timeout for weightd to unmap. A session's copies stop at the next chunk, after some 40 microseconds of a
// real link; registering segments takes longer, and the driver holds its lock meanwhile.
constexpr absl::Duration kUnmapTimeout = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSlab>> DeviceSlab::Create(uint64_t bytes, Backend* backend) {
  ASSIGN_OR_RETURN(const SharedBuffer memory, backend->AllocateShared(bytes));
  return std::unique_ptr<DeviceSlab>(new DeviceSlab(backend, memory));
}

// Freeing memory that another process has open is undefined on CUDA, and memory that it has mapped stays
// allocated. A weightd that does not answer within the timeout has stopped or hangs, and inferd must not hang
// with it.
DeviceSlab::~DeviceSlab() {
  if (client_ != nullptr) {
    client_->RevokeSlabs(SteadyNow() + kUnmapTimeout).IgnoreError();
  }
  backend_->Free(memory_.buffer).IgnoreError();  // the id is valid
}

absl::Status DeviceSlab::Offer(double link_gbps, double link_latency_us, WeightClient* client) {
  const uint64_t session = client->counters().reconnects;
  if (offered_in_ == session) {
    return absl::OkStatus();
  }
  SlabOffer offer;
  offer.fd = memory_.fd;
  offer.bytes = memory_.bytes;
  offer.kind = memory_.kind;
  offer.ipc = memory_.ipc;
  offer.own = memory_.own;
  offer.device = memory_.device;
  offer.link_gbps = link_gbps;
  offer.link_latency_us = link_latency_us;
  client_ = client;  // also after a failed offer: it may have been mapped all the same
  ASSIGN_OR_RETURN(number_, client->OfferSlab(offer));
  offered_in_ = session;
  return absl::OkStatus();
}

}  // namespace sluice::inferd
