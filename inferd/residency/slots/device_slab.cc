#include "inferd/residency/slots/device_slab.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "common/status.h"

namespace sluice {
namespace {

// Since Linux 5.14 and 6.1; best effort on older ones.
constexpr int kPopulateWrite = 23;
constexpr int kCollapse = 25;

absl::StatusOr<SharedMemory> AllocateMemory(uint64_t bytes) {
  ASSIGN_OR_RETURN(SharedMemory memory, CreateSharedMemory("sluice-slab", bytes, PeerAccess::kReadWrite));
  if (madvise(memory.map.data(), memory.map.bytes(), kPopulateWrite) != 0 && errno != EINVAL) {
    return ErrnoToStatus(errno, absl::StrCat("device memory of ", bytes, " bytes"));
  }
  madvise(memory.map.data(), memory.map.bytes(), kCollapse);  // huge pages if there are any
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSlab>> DeviceSlab::Create(uint64_t bytes, Backend* backend) {
  std::unique_ptr<DeviceSlab> slab(new DeviceSlab(backend));
  ASSIGN_OR_RETURN(slab->memory_, AllocateMemory(bytes));
  ImportSpec spec;
  spec.base = slab->memory_.map.data();
  spec.bytes = slab->memory_.map.bytes();
  ASSIGN_OR_RETURN(slab->buffer_, backend->Import(spec));
  return slab;
}

DeviceSlab::~DeviceSlab() {
  if (buffer_ != kNoBuffer) {
    backend_->Free(buffer_).IgnoreError();  // the id is ours
  }
}

absl::Status DeviceSlab::Offer(double link_gbps, double link_latency_us, WeightClient* client) {
  SlabOffer offer;
  offer.fd = memory_.fd.get();
  offer.bytes = memory_.map.bytes();
  offer.link_gbps = link_gbps;
  offer.link_latency_us = link_latency_us;
  ASSIGN_OR_RETURN(number_, client->OfferSlab(offer));
  return absl::OkStatus();
}

}  // namespace sluice
