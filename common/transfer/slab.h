// Slab: device memory that a client lent, as weightd can write it. What it is made of, and so who can write
// it, is its kind: the copier of that kind (common/transfer/copier.h) opens it and alone knows more of it.
//
// Thread safety: immutable; the bytes belong to whoever the protocol says (common/ring/README.md).
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

// What a client says of the memory that it offers, beside the descriptor.
struct SlabHandle {
  HandleKind kind = HandleKind::kMemoryFile;
  DeviceUuid device = {};  // zeros: the host
  uint64_t bytes = 0;      // all of it
  HandleBytes ipc = {};    // of kCudaIpc
  // The device's address of memory that this very process has: nothing is opened then, for a process may
  // not open its own. 0: another process' memory.
  uint64_t own = 0;
};

// Which memory it is: of none that lives two are equal.
struct MemoryIdentity {
  uint64_t device = 0;  // of a file; 0: of no file
  uint64_t number = 0;  // the file's inode, or the one address where this process has the memory
  bool operator==(const MemoryIdentity&) const = default;
};

// None for what is no file.
std::optional<MemoryIdentity> IdentityOf(int fd);

class Slab {
 public:
  virtual ~Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  HandleKind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // The memory behind it, where that can be told from other memory.
  const std::optional<MemoryIdentity>& identity() const { return identity_; }

 protected:
  Slab(HandleKind kind, uint64_t bytes, std::optional<MemoryIdentity> identity)
      : kind_(kind), bytes_(bytes), identity_(identity) {}

 private:
  const HandleKind kind_;
  const uint64_t bytes_;
  const std::optional<MemoryIdentity> identity_;
};

// A memory file of the client's that can neither shrink nor be sparse, mapped (device `sim`).
class HostSlab final : public Slab {
 public:
  // Maps the whole file and all of its pages; takes as long as that takes. INVALID_ARGUMENT: it could shrink,
  // has another size, is sealed against writing, or has pages that its owner has not taken (they would be
  // charged to weightd).
  static absl::StatusOr<std::shared_ptr<HostSlab>> Map(int fd, uint64_t bytes);

  std::byte* data() const { return map_.data(); }

 private:
  HostSlab(Mapping map, MemoryIdentity file)
      : Slab(HandleKind::kMemoryFile, map.bytes(), file), map_(std::move(map)) {}

  const Mapping map_;
};

}  // namespace sluice
