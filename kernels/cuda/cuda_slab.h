// A slab in CUDA memory: another process', imported by its descriptor and mapped here or opened by its IPC
// handle, or this process' own.
//
// Thread safety: as Slab's.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"
#include "common/protocol/copier.h"

namespace sluice::cuda {

class CudaSlab final : public Slab {
 public:
  // Makes our context on the device, where there is none. NOT_FOUND: no device here has that UUID.
  // INVALID_ARGUMENT: descriptor or handle are of no allocation of CUDA's that lives, or of one with another
  // size. The descriptor is closed: the driver keeps a reference of its own.
  static absl::StatusOr<std::shared_ptr<CudaSlab>> Import(UniqueFd fd, const SlabHandle& handle);
  ~CudaSlab() override;

  int device() const { return device_; }
  CUdeviceptr address() const { return hold_.address; }

 private:
  // The mapping, and the steps that releasing it must undo.
  struct Hold {
    CUdeviceptr address = 0;  // 0: none
    void* opened = nullptr;   // by its IPC handle: the same address
    bool reserved = false;    // the next three are of memory that was imported
    bool mapped = false;
    bool imported = false;
    CUmemGenericAllocationHandle allocation = 0;
  };
  CudaSlab(int device, const SlabHandle& handle, std::optional<MemoryIdentity> identity, const Hold& hold)
      : Slab(handle.kind, handle.bytes, identity), device_(device), hold_(hold) {}
  static absl::Status Map(int device, int fd, uint64_t bytes, Hold* hold);
  static absl::Status Open(const SlabHandle& handle, Hold* hold);
  static void LetGo(int device, uint64_t bytes, const Hold& hold);

  const int device_;
  const Hold hold_;
};

}  // namespace sluice::cuda
