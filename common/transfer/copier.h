// Copier: moves chunks of transfers into slabs of one device's memory. The transfer engine says which chunk
// is next and when the modelled link has delivered it; how bytes get there, and when they are there, is the
// copier's.
//
// A copier may take its time: a chunk that was begun is somewhere between the arena and the slab until
// Completed() names it. Sources, plan and slab stay as they are until then.
//
// Thread safety: Open(), Begin() and those of sources may be called from any thread at a time, Completed()
// from one at a time.
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

// A chunk whose copy has ended. Its bytes are in the slab if `error` is OK, and visible to whoever sees a
// release store made afterwards.
struct CopyDone {
  uint64_t tag = 0;  // Begin()'s
  absl::Status error;
};

class Copier {
 public:
  virtual ~Copier() = default;

  // Whether it writes memory that is named so.
  virtual bool Takes(HandleKind kind) const = 0;

  // Takes over memory that a client offered, of a kind that it takes; may take long. `fd`: of kinds with a
  // descriptor. INVALID_ARGUMENT naming what does not fit together, NOT_FOUND: there is no such device.
  virtual absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) = 0;

  // Whether a copy has ended when its Begin() returns; Completed() names none then.
  virtual bool CopiesAtCall() const = 0;

  // Begins to copy one chunk. `slab` is one of Open()'s, the chunk's rows lie within it. After an error
  // nothing is on its way, and Completed() does not name the tag.
  virtual absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) = 0;

  // What has ended since the last call. If nothing has and something is on its way, waits up to `most_nanos`
  // for it; whatever was begun is named within a time that does not depend on further calls.
  virtual std::vector<CopyDone> Completed(int64_t most_nanos) = 0;

  // Memory that chunks will be read from, for copiers that are faster from memory they have been told of; a
  // chunk may come from elsewhere all the same. Returns at once.
  virtual void AddSource(absl::Span<const std::byte> /*memory*/, std::shared_ptr<const void> /*owner*/) {}
  // It will be gone: REQUIRES that no chunk of it is on its way. Returns when the copier has let go of it; at
  // once if it was given an `owner`, which keeps it there until then.
  virtual void RemoveSource(const std::byte* /*base*/) {}
};

// Into memory files, by the calling thread's stores.
class HostCopier final : public Copier {
 public:
  bool Takes(HandleKind kind) const override { return kind == HandleKind::kMemoryFile; }
  absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) override;
  bool CopiesAtCall() const override { return true; }
  absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) override;
  std::vector<CopyDone> Completed(int64_t /*most_nanos*/) override { return {}; }
};

}  // namespace sluice
