// Slabs (device memory that one process lends another) and the copiers that write into them.
//
// Thread safety: stated at each class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/unique_fd.h"
#include "common/protocol/memory_handle.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/transfer_plan.h"

namespace sluice {

// Slab: device memory that a client lent, as weightd can write it. Its kind names the memory and its
// copier: only the copier of that kind opens it and knows its details.
//
// Thread safety: immutable; the protocol defines the owner of the bytes (common/protocol/PROTOCOL.md).

// A client's description of the memory that it offers, besides the descriptor.
struct SlabHandle {
  HandleKind kind = HandleKind::kMemoryFile;
  DeviceUuid device = {};  // zeros: the host
  uint64_t bytes = 0;      // total size
  HandleBytes ipc = {};    // kCudaIpc only
  // Device address if the memory belongs to this very process: nothing is opened then, because a process may
  // not open its own handle. 0: another process' memory.
  uint64_t own = 0;
};

// Identity of a piece of memory: unique among the live ones.
struct MemoryIdentity {
  uint64_t device = 0;  // of the file; 0: not a file
  uint64_t number = 0;  // the file's inode, or the only address where this process has the memory
  bool operator==(const MemoryIdentity&) const = default;
};

// None if the descriptor is not a file.
std::optional<MemoryIdentity> IdentityOf(int fd);

class Slab {
 public:
  virtual ~Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  HandleKind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // Identity of the memory behind it, if it can be told from other memory.
  const std::optional<MemoryIdentity>& identity() const { return identity_; }

 protected:
  Slab(HandleKind kind, uint64_t bytes, std::optional<MemoryIdentity> identity)
      : kind_(kind), bytes_(bytes), identity_(identity) {}

 private:
  const HandleKind kind_;
  const uint64_t bytes_;
  const std::optional<MemoryIdentity> identity_;
};

// A client's memory file that can neither shrink nor be sparse, mapped (device `sim`).
class HostSlab final : public Slab {
 public:
  // Maps the whole file and all of its pages; takes time in proportion. INVALID_ARGUMENT: the file could
  // shrink, has another size, is sealed against writing, or has pages that its owner has not allocated (they
  // would be charged to weightd).
  static absl::StatusOr<std::shared_ptr<HostSlab>> Map(int fd, uint64_t bytes);

  std::byte* data() const { return map_.data(); }

 private:
  HostSlab(Mapping map, MemoryIdentity file)
      : Slab(HandleKind::kMemoryFile, map.bytes(), file), map_(std::move(map)) {}

  const Mapping map_;
};

// Copier: moves chunks of transfers into slabs of one device's memory. The transfer engine chooses the next
// chunk and models when the link has delivered it; the copier decides how bytes are copied and reports their
// completion.
//
// A copier may be asynchronous: a chunk that was begun is between the arena and the slab until Completed()
// returns it. Sources, plan and slab must not change until then.
//
// Thread safety: Open(), Begin() and the source functions may be called from any thread concurrently,
// Completed() from one at a time.

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
