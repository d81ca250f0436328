// Copier: moves chunks of transfers into slabs of one device's memory. The transfer engine chooses the next
// chunk and models when the link has delivered it; the copier decides how bytes are copied and reports their
// completion.
//
// A copier may be asynchronous: a chunk that was begun is between the arena and the slab until Completed()
// returns it. Sources, plan and slab must not change until then.
//
// Thread safety: Open(), Begin() and the source functions may be called from any thread concurrently,
// Completed() from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ring/unique_fd.h"
#include "common/transfer/slab.h"
#include "common/transfer/transfer_plan.h"

namespace sluice {

// A chunk whose copy has ended. If `error` is OK its bytes are in the slab, and visible to every thread that
// sees a release store made afterwards.
struct CopyDone {
  uint64_t tag = 0;  // the tag given to Begin()
  absl::Status error;
};

class Copier {
 public:
  virtual ~Copier() = default;

  // True if this copier writes memory of handles of this kind.
  virtual bool Supports(HandleKind kind) const = 0;

  // Opens memory that a client offered, of a kind that this copier handles; may take long. `fd`: for kinds
  // with a descriptor. INVALID_ARGUMENT naming the mismatch, NOT_FOUND: there is no such device.
  virtual absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) = 0;

  // True if a copy has ended when its Begin() returns; Completed() then returns none.
  virtual bool IsSynchronous() const = 0;

  // Begins to copy one chunk. `slab` came from Open(), and the chunk's rows lie within it. After an error
  // nothing is in flight, and Completed() does not return the tag.
  virtual absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) = 0;

  // Copies that ended since the last call. If none has and some are in flight, waits up to `max_wait_nanos`
  // for one; every copy that was begun is returned within a time that does not depend on further calls.
  virtual std::vector<CopyDone> Completed(int64_t max_wait_nanos) = 0;

  // Announces memory that chunks will be read from, for copiers that are faster from registered memory; a
  // chunk may still come from elsewhere. Returns at once.
  virtual void AddSource(absl::Span<const std::byte> /*memory*/, std::shared_ptr<const void> /*owner*/) {}
  // Unregisters memory before it is freed. REQUIRES: no chunk from it is in flight. Returns when the copier
  // has released it; at once if AddSource() got an `owner`, which keeps the memory alive until then.
  virtual void RemoveSource(const std::byte* /*base*/) {}
};

// Copies into memory files by stores of the calling thread.
class HostCopier final : public Copier {
 public:
  bool Supports(HandleKind kind) const override { return kind == HandleKind::kMemoryFile; }
  absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) override;
  bool IsSynchronous() const override { return true; }
  absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) override;
  std::vector<CopyDone> Completed(int64_t /*max_wait_nanos*/) override { return {}; }
};

}  // namespace sluice
