// The buffer table of a GPU: device memory, the same as another process may map it, pinned host memory that
// the device reads and writes in place (staging), and host memory that others own, registered for the
// device's reading.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/resolver.h"

namespace sluice::cuda {

// The kind of handle that memory of this device is shared by. kBest: a descriptor, or legacy IPC where device
// or driver export none, as on WSL2 and in some containers. FAILED_PRECONDITION: kVmm where they export none.
absl::StatusOr<HandleKind> SharedKindOf(int device, SharedHandle asked);

// Shared memory takes whole ones.
absl::StatusOr<uint64_t> SharedGranule(int device, HandleKind kind);

class Memory final : public Addresses {
 public:
  // `shared`: what AllocateShared() names its memory by.
  explicit Memory(HandleKind shared = HandleKind::kCudaFd) : shared_(shared) {}
  // Frees all that lives. REQUIRES: no work of the device uses it.
  ~Memory() override;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Device memory is zeroed in `stream`; staging is zero at once. RESOURCE_EXHAUSTED naming the bytes and
  // what is free.
  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind, cudaStream_t stream);
  // An allocation of its own with a handle for another process; zeroed when this returns. Kernels only read
  // it. REQUIRES of Free(): the other process has it mapped no more. With legacy IPC that is undefined else,
  // with a descriptor the device's memory stays taken.
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes, cudaStream_t stream);
  // Registers mapped host memory. The device reads it over the link.
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory);
  absl::Status Free(BufferId buffer);

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override;
  std::byte* Write(BufferRef ref, uint64_t bytes) const override;
  absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const override;

  // The host's address, nullptr where it has none; HostWrite: where the host may not write, too.
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) const;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) const;
  // True if a part of these host bytes is staging or imported memory: a copy reads them only when it runs.
  bool IsPinned(const void* host, uint64_t bytes) const;

 private:
  enum class Kind : uint8_t { kFree, kDevice, kShared, kNamed, kStaging, kImported };
  struct Entry {
    Kind kind = Kind::kFree;
    std::byte* device = nullptr;
    std::byte* host = nullptr;  // staging and imported
    uint64_t bytes = 0;
    // Memory shared by a descriptor (kShared; by legacy IPC: kNamed); what of it there is yet.
    CUmemGenericAllocationHandle handle = 0;
    bool created = false;
    bool mapped = false;
    int fd = -1;
    bool Writable() const { return kind == Kind::kDevice || kind == Kind::kStaging; }
  };
  static absl::Status MapShared(int device, Entry* entry);
  static absl::Status NameShared(Entry* entry, HandleBytes* ipc);
  const Entry* Find(BufferRef ref, uint64_t bytes) const;
  static cudaError_t Release(const Entry& entry);

  const HandleKind shared_;
  std::vector<Entry> entries_;  // entries_[id - 1]
};

}  // namespace sluice::cuda
