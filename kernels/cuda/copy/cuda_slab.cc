#include "kernels/cuda/copy/cuda_slab.h"

#include <cuda_runtime_api.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {
namespace {

// The driver's codes are the runtime's.
absl::Status StatusOf(CUresult result, absl::string_view what) {
  return cuda::StatusOf(static_cast<cudaError_t>(result), what);
}

std::string Words(const DeviceUuid& uuid) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
}

absl::StatusOr<int> DeviceOf(const DeviceUuid& uuid) {
  int count = 0;
  RETURN_IF_ERROR(cuda::StatusOf(cudaGetDeviceCount(&count), "the number of GPUs"));
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    RETURN_IF_ERROR(cuda::StatusOf(cudaGetDeviceProperties(&properties, device), "properties of a GPU"));
    if (std::memcmp(properties.uuid.bytes, uuid.data(), uuid.size()) == 0) {
      return device;
    }
  }
  return absl::NotFoundError(
      absl::StrCat("slab: none of the ", count, " GPUs here has the UUID ", Words(uuid)));
}

// A driver's descriptors are of a device node that all allocations share; an own file tells one from another.
std::optional<FileIdentity> FileOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? IdentityOf(fd) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaSlab>> CudaSlab::Import(UniqueFd fd, const SlabHandle& handle) {
  if (!fd.valid()) {
    return absl::InvalidArgumentError("slab: it came without a descriptor");
  }
  ASSIGN_OR_RETURN(const int device, DeviceOf(handle.device));
  RETURN_IF_ERROR(cuda::StatusOf(cudaSetDevice(device), "choosing the slab's GPU"));
  // A call of the runtime that needs the context makes it; the driver's calls below do not.
  RETURN_IF_ERROR(cuda::StatusOf(cudaFree(nullptr), "a context on the slab's GPU"));
  std::shared_ptr<CudaSlab> slab(new CudaSlab(device, handle, FileOf(fd.get())));
  const absl::Status mapped = slab->Map(fd.get());
  if (!mapped.ok()) {
    cudaGetLastError();  // said here, and not again by the next call
    // What a client hands over is the client's fault, whatever CUDA calls it.
    return absl::IsResourceExhausted(mapped)
               ? mapped
               : absl::InvalidArgumentError(absl::StrCat("slab: ", mapped.message()));
  }
  return slab;
}

absl::Status CudaSlab::Map(int fd) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  size_t granule = 0;
  RETURN_IF_ERROR(StatusOf(
      cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity"));
  if (bytes() == 0 || bytes() % granule != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes(), " bytes are no whole granules of ", granule, " bytes"));
  }
  RETURN_IF_ERROR(StatusOf(
      cuMemImportFromShareableHandle(&allocation_, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "its descriptor is of no CUDA memory"));
  imported_ = true;
  RETURN_IF_ERROR(
      StatusOf(cuMemAddressReserve(&address_, bytes(), 0, 0, 0), absl::StrCat("addresses of ", bytes())));
  RETURN_IF_ERROR(
      StatusOf(cuMemMap(address_, bytes(), 0, allocation_, 0),
               absl::StrCat("it cannot be mapped with the ", bytes(), " bytes that were stated")));
  mapped_ = true;
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return StatusOf(cuMemSetAccess(address_, bytes(), &access, 1), "it cannot be written");
}

// Errors are those of a device that has failed, whose memory goes with the context.
CudaSlab::~CudaSlab() {
  cudaSetDevice(device_);
  if (mapped_) {
    cuMemUnmap(address_, bytes());
  }
  if (address_ != 0) {
    cuMemAddressFree(address_, bytes());
  }
  if (imported_) {
    cuMemRelease(allocation_);
  }
}

}  // namespace sluice::cuda
