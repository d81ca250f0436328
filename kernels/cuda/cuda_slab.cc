#include "kernels/cuda/cuda_slab.h"

#include <cuda_runtime_api.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {
namespace {

// Bytes by which an exporter rounds a slab by an IPC handle up to (kernels/cuda/cuda_memory.cc).
constexpr uint64_t kMallocBlock = 2 << 20;

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
std::optional<MemoryIdentity> FileOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? IdentityOf(fd) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaSlab>> CudaSlab::Import(UniqueFd fd, const SlabHandle& handle) {
  const bool by_descriptor = handle.own == 0 && DescriptorsOf(handle.kind) > 0;
  if (by_descriptor && !fd.valid()) {
    return absl::InvalidArgumentError("slab: it came without a descriptor");
  }
  ASSIGN_OR_RETURN(const int device, DeviceOf(handle.device));
  RETURN_IF_ERROR(cuda::StatusOf(cudaSetDevice(device), "choosing the slab's GPU"));
  // A call of the runtime that needs the context makes it; the driver's calls below do not.
  RETURN_IF_ERROR(cuda::StatusOf(cudaFree(nullptr), "a context on the slab's GPU"));
  Hold hold;
  hold.address = handle.own;
  absl::Status mapped;
  std::optional<MemoryIdentity> identity;
  if (by_descriptor) {
    mapped = Map(device, fd.get(), handle.bytes, &hold);
    identity = FileOf(fd.get());
  } else if (handle.own == 0) {
    mapped = Open(handle, &hold);
    identity = {0, hold.address};  // opened twice it is there but once
  }
  if (!mapped.ok()) {
    LetGo(device, handle.bytes, hold);
    cudaGetLastError();  // said here, and not again by the next call
    // A bad descriptor or handle is the client's fault, whatever code CUDA returns.
    return absl::IsResourceExhausted(mapped)
               ? mapped
               : absl::InvalidArgumentError(absl::StrCat("slab: ", mapped.message()));
  }
  return std::shared_ptr<CudaSlab>(new CudaSlab(device, handle, identity, hold));
}

absl::Status CudaSlab::Map(int device, int fd, uint64_t bytes, Hold* hold) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t granule = 0;
  RETURN_IF_ERROR(StatusOf(
      cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity"));
  if (bytes == 0 || bytes % granule != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are no whole granules of ", granule, " bytes"));
  }
  RETURN_IF_ERROR(StatusOf(
      cuMemImportFromShareableHandle(&hold->allocation, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "its descriptor is of no CUDA memory"));
  hold->imported = true;
  RETURN_IF_ERROR(
      StatusOf(cuMemAddressReserve(&hold->address, bytes, 0, 0, 0), absl::StrCat("addresses of ", bytes)));
  hold->reserved = true;
  RETURN_IF_ERROR(StatusOf(cuMemMap(hold->address, bytes, 0, hold->allocation, 0),
                           absl::StrCat("it cannot be mapped with the ", bytes, " bytes that were stated")));
  hold->mapped = true;
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return StatusOf(cuMemSetAccess(hold->address, bytes, &access, 1), "it cannot be written");
}

// The handle says nothing of its size: that is the driver's to say, of what was opened.
absl::Status CudaSlab::Open(const SlabHandle& handle, Hold* hold) {
  if (handle.bytes == 0 || handle.bytes % kMallocBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(handle.bytes, " bytes are no whole blocks of ", kMallocBlock, " bytes"));
  }
  cudaIpcMemHandle_t bytes;
  static_assert(sizeof(bytes) == sizeof(handle.ipc));
  std::memcpy(&bytes, handle.ipc.data(), sizeof(bytes));
  RETURN_IF_ERROR(cuda::StatusOf(cudaIpcOpenMemHandle(&hold->opened, bytes, cudaIpcMemLazyEnablePeerAccess),
                                 absl::StrCat("its IPC handle, stated to be of ", handle.bytes,
                                              " bytes, names no memory that another process has")));
  hold->address = reinterpret_cast<CUdeviceptr>(hold->opened);
  CUdeviceptr base = 0;
  size_t size = 0;
  RETURN_IF_ERROR(
      StatusOf(cuMemGetAddressRange(&base, &size, hold->address), "the size of what its IPC handle names"));
  // The manual says nothing of an opened address: the range may be that of a larger block around it.
  const uint64_t before = hold->address - base;
  if (before > size || handle.bytes > size - before) {
    return absl::InvalidArgumentError(absl::StrCat("its IPC handle is of ", size, " bytes from byte ", before,
                                                   " on, ", handle.bytes, " were stated"));
  }
  return absl::OkStatus();
}

// Errors are those of a device that has failed, whose memory goes with the context.
void CudaSlab::LetGo(int device, uint64_t bytes, const Hold& hold) {
  cudaSetDevice(device);
  if (hold.opened != nullptr) {
    cudaIpcCloseMemHandle(hold.opened);
  }
  if (hold.mapped) {
    cuMemUnmap(hold.address, bytes);
  }
  if (hold.reserved) {
    cuMemAddressFree(hold.address, bytes);
  }
  if (hold.imported) {
    cuMemRelease(hold.allocation);
  }
}

CudaSlab::~CudaSlab() { LetGo(device_, bytes(), hold_); }

}  // namespace sluice::cuda
