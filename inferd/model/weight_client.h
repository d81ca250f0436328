// inferd's view of weightd: leases on resident extents without messages, fetch requests over shared rings.
//
// The interface is gRPC-free so that the engine can be tested against an in-process store
// (tests/support/fakes/fake_weight_client.h) and against the real session
// (inferd/session/session_weight_client.h).
//
// Thread safety: thread-compatible; everything is called by the engine thread, except Describe() and
// counters(), which any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/protocol/memory_handle.h"
#include "common/protocol/request_class.h"
#include "pack/pack.h"

namespace sluice::inferd {

// A leased extent: `bytes` readable bytes at `data` until Release(). `segment` and `offset` are the same
// location as a position in a mapped segment, for backends that imported it (SegmentObserver).
struct ExtentLease {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint32_t segment = 0;
  uint64_t offset = 0;
};

// Device memory that weightd writes into (devices sim and cuda), and the link to it.
struct SlabOffer {
  int fd = -1;         // borrowed; kinds with a descriptor
  uint64_t bytes = 0;  // size of the whole handle
  HandleKind kind = HandleKind::kMemoryFile;
  HandleBytes ipc = {};    // for kCudaIpc
  uint64_t own = 0;        // its device address in this process; 0: host memory
  DeviceUuid device = {};  // the owning device
  // sim: the link's rate in 1e9 bytes a second, 0: unthrottled; and the latency of a copy's first byte.
  double link_gbps = 0;
  double link_latency_us = 0;
};

// Target layout of a transfer's parts: the row of neuron i (with a list: of the i-th in it) of a part goes to
// base[part] + i * stride[part]; the stride is at least the row's bytes. Parts not requested: 0. A dense
// extent's bytes go to base[0], and all else is empty. The padding between two rows of a request (less than
// 16 bytes, 64 with strides above 512) may be written too.
struct TransferTarget {
  uint32_t slab = 0;  // number returned by OfferSlab
  std::array<uint64_t, kPartCount> base = {};
  std::array<uint64_t, kPartCount> stride = {};
  absl::Span<const uint32_t> neurons;  // ascending, distinct; empty: all. Copied by Submit()
  uint32_t tile_neurons = 0;           // rows land in tiles of this size; 0: one tile
};

// One request to bring weights into weightd's DRAM, and with `transfer` on into a slab. Either a whole expert
// (parts of (layer, expert)) or, when `dense_extent` is not kNoExtent, one dense extent.
struct FetchRequest {
  static constexpr uint32_t kNoExtent = 0xffffffffu;
  uint64_t id = 0;  // chosen by the caller, unique among outstanding requests
  RequestClass request_class = RequestClass::kDemand;
  uint64_t step = 0;  // engine step; with `layer` the generation for dropping stale prefetches
  uint32_t layer = 0;
  uint32_t expert = 0;
  PartSet parts = kAllParts;
  uint32_t dense_extent = kNoExtent;
  // Borrowed during Submit(). weightd owns the slab's ranges until the request has completed: the caller
  // neither reads them (except landed tiles) nor lends them meanwhile.
  const TransferTarget* transfer = nullptr;
};

struct FetchCompletion {
  uint64_t id = 0;
  absl::StatusCode code =
      absl::StatusCode::kOk;  // kOk, kCancelled, kDataLoss, kResourceExhausted (no room), kUnavailable
  uint32_t extent = FetchRequest::kNoExtent;  // the extent at fault when code is kDataLoss
  uint64_t bytes = 0;                         // bytes read from SSD for it; 0 when it was resident
  uint32_t queue_us = 0;
  uint32_t io_us = 0;
  uint32_t copy_us = 0;     // transfers: from the copy's first byte to its last
  uint64_t link_bytes = 0;  // transfers: bytes copied into the slab
};

// Notified when a segment of weightd's arena becomes readable in this process and before it is unmapped.
class SegmentObserver {
 public:
  virtual ~SegmentObserver() = default;
  virtual absl::Status OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) = 0;
  virtual void OnSegmentUnmapped(uint32_t segment) = 0;
};

// Monotonic counters since the client was created.
struct WeightClientCounters {
  uint64_t leases = 0;  // successful TryLease calls
  uint64_t lease_misses = 0;
  uint64_t demand_requests = 0;
  uint64_t prefetch_requests = 0;
  uint64_t bytes_ssd = 0;
  uint64_t bytes_link = 0;  // copied into slabs
  uint64_t reconnects = 0;
  uint64_t held_leases = 0;  // gauge: leases held now
  uint64_t outstanding = 0;  // gauge: requests without completion
};

class WeightClient {
 public:
  virtual ~WeightClient() = default;

  // The pack this session serves; lives as long as the client.
  virtual const Pack& pack() const = 0;

  // Sets the observer (may be null) and reports every segment already mapped to it.
  virtual absl::Status SetSegmentObserver(SegmentObserver* observer) = 0;

  // Leases `extent` if it is resident: no message, no system call on the usual path. Nests: each true needs
  // one Release(). False: not resident (fetch it) or the connection is lost and the extent was not held.
  virtual bool TryLease(uint32_t extent, ExtentLease* lease) = 0;

  // Gives one lease back; `step` stamps the use for weightd's eviction. REQUIRES: a held lease on `extent`.
  virtual void Release(uint32_t extent, uint64_t step) = 0;

  // True: the following requests and releases are a scan's, a step that uses nearly every expert of every
  // layer once, as a long prompt does. weightd then evicts experts that such a step needs again last, and its
  // uses do not count for the LRU. False at the start; clients without an eviction ignore it.
  virtual void SetScan(bool /*scan*/) {}

  // True if TryLease would probably succeed: a hint for the router and predictors, takes no lease.
  virtual bool IsResident(uint32_t extent) const = 0;

  // Queues a request. RESOURCE_EXHAUSTED: the ring or the lists' arena is full (poll, then retry);
  // UNAVAILABLE: connection lost. An invalid transfer (ranges, neurons, slab) completes kInvalidArgument. A
  // transfer of the same rows to the same target as an outstanding one is coalesced with it: a demand makes a
  // prefetch a demand, and both complete together, the later one with link_bytes 0.
  virtual absl::Status Submit(const FetchRequest& request) = 0;

  // Doorbell batching: requests queued between BeginSubmitBatch() and EndSubmitBatch() wake a sleeping
  // weightd once, at EndSubmitBatch(), or earlier if another request follows after more than a fifth of a
  // millisecond. Pairs nest. A wake costs the caller more than some ten requests. Clients without a doorbell
  // ignore both.
  virtual void BeginSubmitBatch() {}
  virtual void EndSubmitBatch() {}

  // Lends a slab to weightd; blocks until weightd has mapped it. A slab belongs to the session: Reconnect()
  // forgets it, and it is offered again under another number. UNIMPLEMENTED: a client without slabs, or a
  // weightd that cannot write memory of this kind; INVALID_ARGUMENT: a file that could shrink or of another
  // size; UNAVAILABLE: connection lost.
  virtual absl::StatusOr<uint32_t> OfferSlab(const SlabOffer& /*offer*/) {
    return absl::UnimplementedError("this client of weightd has no slabs");
  }

  // Revokes all offered slabs: after OK no process writes to them or has them mapped, and they may be freed.
  // This ends weightd's session, to which they belong, and Reconnect() opens another; connected() is false
  // until then. Leases stay readable. DEADLINE_EXCEEDED: a live weightd has not answered. Does nothing in
  // clients whose slabs no other process maps.
  virtual absl::Status RevokeSlabs(absl::Time /*deadline*/) { return absl::OkStatus(); }

  // Number of landed tiles of the outstanding transfer `id`; their bytes may be read. 0 for other requests.
  virtual uint32_t LandedTiles(uint64_t /*id*/) const { return 0; }

  // Cancels one request; it still completes, kCancelled or kOk. Unknown ids are ignored.
  virtual void Cancel(uint64_t /*id*/) {}

  // Drops prefetches not yet started for layers <= `layer` of steps <= `step`; each still completes,
  // kCancelled.
  virtual void CancelPrefetches(uint64_t step, uint32_t layer) = 0;

  // Calls `handle` for every completion that has arrived, without blocking. Filled extents stay resident
  // until `handle` returns, so `handle` leases those to keep. Returns the number of completions.
  virtual size_t Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) = 0;

  // Blocks until a completion may be polled, Wake() was called, or `deadline`. OK in all three cases;
  // UNAVAILABLE when the connection to weightd is lost.
  virtual absl::Status Wait(absl::Time deadline) = 0;

  // Ends a Wait() early; the next Wait() returns at once if none is running. Safe from any thread.
  virtual void Wake() = 0;

  // False once weightd is gone (its process died or closed the session). Held leases stay readable.
  virtual bool connected() const = 0;

  // Opens a new session after connected() turned false: unmaps every dead segment (the observer is told),
  // waits for the old process to be gone, connects. One attempt, bounded by `deadline`; UNAVAILABLE when
  // weightd is not back. Outstanding requests are forgotten: their completions never come. REQUIRES: no lease
  // is held.
  virtual absl::Status Reconnect(absl::Time deadline) = 0;

  virtual WeightClientCounters counters() const = 0;

  // One line for the start-up log: transport, epoch, wake kind.
  virtual std::string Describe() const = 0;
};

// Batches a client's doorbell over its lifetime.
class BatchSubmit {
 public:
  explicit BatchSubmit(WeightClient* client) : client_(client) { client_->BeginSubmitBatch(); }
  ~BatchSubmit() { client_->EndSubmitBatch(); }
  BatchSubmit(const BatchSubmit&) = delete;
  BatchSubmit& operator=(const BatchSubmit&) = delete;

 private:
  WeightClient* const client_;
};

// Leases of several extents together, as an expert's: all of them or none.
//
// Thread safety: free functions; belong to the client's thread.

inline void ReleaseExtents(ExtentRange range, uint64_t step, WeightClient* client) {
  for (uint32_t i = 0; i < range.count; ++i) {
    client->Release(range.first + i, step);
  }
}

// Leases into `leases` [range.count]; false: weightd does not have all of them in DRAM, and none is leased.
inline bool LeaseExtents(ExtentRange range, uint64_t step, WeightClient* client, ExtentLease* leases) {
  for (uint32_t i = 0; i < range.count; ++i) {
    if (!client->TryLease(range.first + i, &leases[i])) {
      ReleaseExtents({range.first, i}, step, client);
      return false;
    }
  }
  return true;
}

}  // namespace sluice::inferd
