// A slab in CUDA memory that another process has made: imported by its descriptor, mapped here.
//
// Thread safety: as Slab's.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"
#include "common/transfer/slab.h"

namespace sluice::cuda {

class CudaSlab final : public Slab {
 public:
  // Makes our context on the device, where there is none. NOT_FOUND: no device here has that UUID.
  // INVALID_ARGUMENT: the descriptor is of no allocation of CUDA's, or of one with another size. The
  // descriptor is closed: the driver keeps a reference of its own.
  static absl::StatusOr<std::shared_ptr<CudaSlab>> Import(UniqueFd fd, const SlabHandle& handle);
  ~CudaSlab() override;

  int device() const { return device_; }
  CUdeviceptr address() const { return address_; }

 private:
  CudaSlab(int device, const SlabHandle& handle, std::optional<FileIdentity> file)
      : Slab(HandleKind::kCudaFd, handle.bytes, file), device_(device) {}
  absl::Status Map(int fd);

  const int device_;
  CUmemGenericAllocationHandle allocation_ = 0;
  bool imported_ = false;
  bool mapped_ = false;
  CUdeviceptr address_ = 0;  // 0: none
};

}  // namespace sluice::cuda
