// Slab: device memory that a client lent, as weightd has it mapped. For device `sim` it is a memory file of
// the client's that can neither shrink nor be sparse.
//
// Thread safety: immutable; the bytes belong to whoever the protocol says (common/ring/README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/shared_memory.h"

namespace sluice {

class Slab {
 public:
  // Maps the whole file and all of its pages; takes as long as that takes. INVALID_ARGUMENT: it could shrink,
  // has another size, is sealed against writing, or has pages that its owner has not taken (they would be
  // charged to weightd).
  static absl::StatusOr<std::shared_ptr<Slab>> Map(int fd, uint64_t bytes);

  std::byte* data() const { return map_.data(); }
  uint64_t bytes() const { return map_.bytes(); }

 private:
  explicit Slab(Mapping map) : map_(std::move(map)) {}

  const Mapping map_;
};

}  // namespace sluice
