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
};

// Which file a descriptor is of. Of memory files no two that live are equal.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

// None for what is no file.
std::optional<FileIdentity> IdentityOf(int fd);

class Slab {
 public:
  virtual ~Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  HandleKind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // The file behind it, where that tells one slab from another.
  const std::optional<FileIdentity>& file() const { return file_; }

 protected:
  Slab(HandleKind kind, uint64_t bytes, std::optional<FileIdentity> file)
      : kind_(kind), bytes_(bytes), file_(file) {}

 private:
  const HandleKind kind_;
  const uint64_t bytes_;
  const std::optional<FileIdentity> file_;
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
  HostSlab(Mapping map, FileIdentity file)
      : Slab(HandleKind::kMemoryFile, map.bytes(), file), map_(std::move(map)) {}

  const Mapping map_;
};

}  // namespace sluice
