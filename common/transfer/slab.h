// Slab: device memory that a client lent, as weightd can write it. Its kind says what memory it is and who
// can write it: only the copier of that kind (common/transfer/copier.h) opens it and knows its details.
//
// Thread safety: immutable; the protocol defines the owner of the bytes (common/ring/README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/memory_handle.h"
#include "common/ring/shared_memory.h"

namespace sluice {

// A client's description of the memory that it offers, beside the descriptor.
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

}  // namespace sluice
