// The buffer table of backends whose memory is the host's: allocations and imported read-only regions behind
// BufferIds, with every access checked against the buffer's size.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/shared_memory.h"
#include "kernels/buffer.h"
#include "kernels/resolver.h"

namespace sluice {

// Zeroed anonymous memory in a mapping of its own: untouched pages cost nothing. Large arrays request huge
// pages. Movable; frees the memory when destroyed.
class MappedArray {
 public:
  MappedArray() = default;
  ~MappedArray();
  MappedArray(MappedArray&& other) noexcept;
  MappedArray& operator=(MappedArray&& other) noexcept;

  // Errors: RESOURCE_EXHAUSTED naming `what` and the bytes. bytes may be 0.
  static absl::StatusOr<MappedArray> Create(uint64_t bytes, const char* what);

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

class HostMemory final : public Addresses {
 public:
  absl::StatusOr<BufferId> Allocate(uint64_t bytes);
  // Allocates a memory file with its pages populated, huge pages if there are any; read-only here. The table
  // owns `fd`.
  absl::StatusOr<BufferId> AllocateShared(uint64_t bytes, int* fd);
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory);
  absl::Status Free(BufferId buffer);
  // REQUIRES: `buffer` lives.
  uint64_t BytesOf(BufferId buffer) const { return entries_[buffer - 1].bytes; }

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override;
  std::byte* Write(BufferRef ref, uint64_t bytes) const override;
  absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const override;

 private:
  struct Entry {
    const std::byte* base = nullptr;  // nullptr: freed
    uint64_t bytes = 0;
    bool writable = false;
    MappedArray owned;
    SharedMemory shared;
  };
  const Entry* Find(BufferRef ref, uint64_t bytes) const;

  std::vector<Entry> entries_;  // entries_[id - 1]
};

}  // namespace sluice
