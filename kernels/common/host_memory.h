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
#include "kernels/buffer.h"
#include "kernels/calls/addresses.h"

namespace sluice {

// Zeroed anonymous memory of its own mapping: pages that are never touched cost nothing. Large ones ask for
// huge pages. Movable; gives the memory back when destroyed.
class MappedArray {
 public:
  MappedArray() = default;
  ~MappedArray();
  MappedArray(MappedArray&& other) noexcept;
  MappedArray& operator=(MappedArray&& other) noexcept;

  // RESOURCE_EXHAUSTED naming `what` and the bytes. bytes may be 0.
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
  absl::StatusOr<BufferId> Import(const std::byte* base, uint64_t bytes);
  absl::Status Free(BufferId buffer);

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override;
  std::byte* Write(BufferRef ref, uint64_t bytes) const override;
  const std::byte* Look(BufferRef ref, uint64_t bytes) const override { return Read(ref, bytes); }
  absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const override;

 private:
  struct Entry {
    const std::byte* base = nullptr;  // nullptr: freed
    uint64_t bytes = 0;
    bool writable = false;
    MappedArray owned;
  };
  const Entry* Find(BufferRef ref, uint64_t bytes) const;

  std::vector<Entry> entries_;  // entries_[id - 1]
};

}  // namespace sluice
