#include "kernels/cuda/cuda_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice::cuda {
namespace {

// The driver's codes are the runtime's.
absl::Status StatusOf(CUresult result, absl::string_view what) {
  return cuda::StatusOf(static_cast<cudaError_t>(result), what);
}

CUdeviceptr AddressOf(std::byte* place) { return reinterpret_cast<CUdeviceptr>(place); }

// cudaMalloc cuts smaller allocations out of blocks of so much, and an IPC handle names a whole block.
constexpr uint64_t kMallocBlock = 2 << 20;

CUmemAllocationProp SharedProperties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

}  // namespace

absl::StatusOr<HandleKind> SharedKindOf(int device, SharedHandle asked) {
  if (asked == SharedHandle::kIpc) {
    return HandleKind::kCudaIpc;
  }
  CUdevice handle = 0;
  RETURN_IF_ERROR(StatusOf(cuInit(0), "the driver"));
  RETURN_IF_ERROR(StatusOf(cuDeviceGet(&handle, device), "the GPU's handle"));
  int exports = 0;  // where there is no virtual memory management it is 0 too
  RETURN_IF_ERROR(StatusOf(
      cuDeviceGetAttribute(&exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, handle),
      "whether the GPU's memory is exported as descriptors"));
  if (exports == 0 && asked == SharedHandle::kVmm) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", device, " or its driver exports no descriptors of its memory; it has legacy IPC handles"));
  }
  return exports == 0 ? HandleKind::kCudaIpc : HandleKind::kCudaFd;
}

absl::StatusOr<uint64_t> SharedGranule(int device, HandleKind kind) {
  if (kind == HandleKind::kCudaIpc) {
    return kMallocBlock;
  }
  const CUmemAllocationProp properties = SharedProperties(device);
  size_t granule = 0;
  RETURN_IF_ERROR(
      StatusOf(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "the granularity of shared memory"));
  return granule;
}

Memory::~Memory() {
  for (const Entry& entry : entries_) {
    Release(entry);
  }
}

cudaError_t Memory::Release(const Entry& entry) {
  switch (entry.kind) {
    case Kind::kDevice:
    case Kind::kNamed:
      return cudaFree(entry.device);
    case Kind::kStaging:
      return cudaFreeHost(entry.host);
    case Kind::kImported:
      return cudaHostUnregister(entry.host);
    case Kind::kShared: {
      CUresult result = CUDA_SUCCESS;
      const auto keep_first = [&](CUresult next) { result = result == CUDA_SUCCESS ? next : result; };
      if (entry.mapped) {
        keep_first(cuMemUnmap(AddressOf(entry.device), entry.bytes));
      }
      if (entry.device != nullptr) {
        keep_first(cuMemAddressFree(AddressOf(entry.device), entry.bytes));
      }
      if (entry.created) {
        keep_first(cuMemRelease(entry.handle));
      }
      if (entry.fd >= 0) {
        close(entry.fd);
      }
      return static_cast<cudaError_t>(result);
    }
    case Kind::kFree:
      break;
  }
  return cudaSuccess;
}

absl::StatusOr<BufferId> Memory::Allocate(uint64_t bytes, BufferKind kind, cudaStream_t stream) {
  if (bytes == 0) {
    return absl::InvalidArgumentError("a buffer of 0 bytes");
  }
  Entry entry;
  entry.bytes = bytes;
  void* place = nullptr;
  if (kind == BufferKind::kStaging) {
    entry.kind = Kind::kStaging;
    RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&place, bytes, cudaHostAllocMapped),
                             absl::StrCat("pinned host memory of ", bytes, " bytes")));
    std::memset(place, 0, bytes);
    entry.host = static_cast<std::byte*>(place);
    RETURN_IF_ERROR(StatusOf(cudaHostGetDevicePointer(&place, entry.host, 0), "pinned host memory"));
    entry.device = static_cast<std::byte*>(place);
  } else {
    entry.kind = Kind::kDevice;
    const cudaError_t error = cudaMalloc(&place, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();  // said here, and not again by the next launch
      size_t free = 0;
      size_t total = 0;
      RETURN_IF_ERROR(StatusOf(cudaMemGetInfo(&free, &total), "device memory"));
      return StatusOf(error,
                      absl::StrCat("device memory of ", bytes, " bytes, ", free, " of ", total, " free"));
    }
    entry.device = static_cast<std::byte*>(place);
    RETURN_IF_ERROR(StatusOf(cudaMemsetAsync(place, 0, bytes, stream), "zeroing device memory"));
  }
  entries_.push_back(entry);
  return static_cast<BufferId>(entries_.size());
}

absl::Status Memory::MapShared(int device, Entry* entry) {
  const CUmemAllocationProp properties = SharedProperties(device);
  RETURN_IF_ERROR(StatusOf(cuMemCreate(&entry->handle, entry->bytes, &properties, 0),
                           absl::StrCat("shared device memory of ", entry->bytes, " bytes")));
  entry->created = true;
  CUdeviceptr address = 0;
  RETURN_IF_ERROR(StatusOf(cuMemAddressReserve(&address, entry->bytes, 0, 0, 0), "addresses"));
  entry->device = reinterpret_cast<std::byte*>(address);
  RETURN_IF_ERROR(StatusOf(cuMemMap(address, entry->bytes, 0, entry->handle, 0), "mapping shared memory"));
  entry->mapped = true;
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  RETURN_IF_ERROR(
      StatusOf(cuMemSetAccess(address, entry->bytes, &access, 1), "rights to shared device memory"));
  return StatusOf(
      cuMemExportToShareableHandle(&entry->fd, entry->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "a descriptor of shared device memory");
}

absl::Status Memory::NameShared(Entry* entry, HandleBytes* ipc) {
  void* place = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaMalloc(&place, entry->bytes),
                           absl::StrCat("shared device memory of ", entry->bytes, " bytes")));
  entry->device = static_cast<std::byte*>(place);
  cudaIpcMemHandle_t handle;
  RETURN_IF_ERROR(StatusOf(cudaIpcGetMemHandle(&handle, place),
                           absl::StrCat("an IPC handle of device memory of ", entry->bytes, " bytes")));
  static_assert(sizeof(handle) == sizeof(*ipc));
  std::memcpy(ipc->data(), &handle, sizeof(handle));
  return absl::OkStatus();
}

absl::StatusOr<SharedBuffer> Memory::AllocateShared(uint64_t bytes, cudaStream_t stream) {
  if (bytes == 0) {
    return absl::InvalidArgumentError("a shared buffer of 0 bytes");
  }
  int device = 0;
  RETURN_IF_ERROR(StatusOf(cudaGetDevice(&device), "the current device"));
  cudaDeviceProp properties;
  RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&properties, device), "properties of the GPU"));
  ASSIGN_OR_RETURN(const uint64_t granule, SharedGranule(device, shared_));
  SharedBuffer shared;
  Entry entry;
  entry.bytes = (bytes + granule - 1) / granule * granule;
  absl::Status status;
  if (shared_ == HandleKind::kCudaIpc) {
    entry.kind = Kind::kNamed;
    status = NameShared(&entry, &shared.ipc);
  } else {
    entry.kind = Kind::kShared;
    status = MapShared(device, &entry);
  }
  if (status.ok()) {
    status = StatusOf(cudaMemsetAsync(entry.device, 0, entry.bytes, stream), "zeroing device memory");
  }
  if (status.ok()) {
    // Nothing orders this stream before the other process' copies.
    status = StatusOf(cudaStreamSynchronize(stream), "zeroing device memory");
  }
  if (!status.ok()) {
    Release(entry);
    cudaGetLastError();  // said here, and not again by the next launch
    return status;
  }
  entries_.push_back(entry);
  shared.buffer = static_cast<BufferId>(entries_.size());
  shared.bytes = entry.bytes;
  shared.kind = shared_;
  shared.fd = entry.fd;
  shared.own = AddressOf(entry.device);
  static_assert(sizeof(properties.uuid.bytes) == sizeof(shared.device));
  std::memcpy(shared.device.data(), properties.uuid.bytes, sizeof(shared.device));
  return shared;
}

absl::StatusOr<BufferId> Memory::Import(absl::Span<const std::byte> memory) {
  if (memory.data() == nullptr || memory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("import of ", memory.size(), " bytes without a base or a size"));
  }
  Entry entry;
  entry.kind = Kind::kImported;
  entry.host = const_cast<std::byte*>(memory.data());
  entry.bytes = memory.size();
  RETURN_IF_ERROR(StatusOf(cudaHostRegister(entry.host, entry.bytes, cudaHostRegisterMapped),
                           absl::StrCat("registering ", entry.bytes, " bytes of host memory")));
  void* device = nullptr;
  const cudaError_t found = cudaHostGetDevicePointer(&device, entry.host, 0);
  if (found != cudaSuccess) {
    cudaHostUnregister(entry.host);
    return StatusOf(found, "registered host memory");
  }
  entry.device = static_cast<std::byte*>(device);
  entries_.push_back(entry);
  return static_cast<BufferId>(entries_.size());
}

absl::Status Memory::Free(BufferId buffer) {
  if (buffer == kNoBuffer || buffer > entries_.size() || entries_[buffer - 1].kind == Kind::kFree) {
    return absl::NotFoundError(absl::StrCat("buffer ", buffer, " does not live"));
  }
  const absl::Status status =
      StatusOf(Release(entries_[buffer - 1]), absl::StrCat("freeing buffer ", buffer));
  entries_[buffer - 1] = {};
  return status;
}

const Memory::Entry* Memory::Find(BufferRef ref, uint64_t bytes) const {
  if (ref.buffer == kNoBuffer || ref.buffer > entries_.size()) {
    return nullptr;
  }
  const Entry& entry = entries_[ref.buffer - 1];
  return entry.kind != Kind::kFree && ref.offset <= entry.bytes && bytes <= entry.bytes - ref.offset
             ? &entry
             : nullptr;
}

const std::byte* Memory::Read(BufferRef ref, uint64_t bytes) const {
  const Entry* const entry = Find(ref, bytes);
  return entry == nullptr ? nullptr : entry->device + ref.offset;
}

std::byte* Memory::Write(BufferRef ref, uint64_t bytes) const {
  const Entry* const entry = Find(ref, bytes);
  return entry == nullptr || !entry->Writable() ? nullptr : entry->device + ref.offset;
}

const std::byte* Memory::HostRead(BufferRef ref, uint64_t bytes) const {
  const Entry* const entry = Find(ref, bytes);
  return entry == nullptr || entry->host == nullptr ? nullptr : entry->host + ref.offset;
}

std::byte* Memory::HostWrite(BufferRef ref, uint64_t bytes) const {
  const Entry* const entry = Find(ref, bytes);
  return entry == nullptr || entry->kind != Kind::kStaging ? nullptr : entry->host + ref.offset;
}

bool Memory::IsPinned(const void* host, uint64_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(host);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.host != nullptr && begin < entry.host + entry.bytes && entry.host < begin + bytes;
  });
}

absl::Status Memory::Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const {
  if (ref.buffer == kNoBuffer || ref.buffer > entries_.size() ||
      entries_[ref.buffer - 1].kind == Kind::kFree) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": buffer ", ref.buffer, " does not live"));
  }
  const Entry& entry = entries_[ref.buffer - 1];
  if (Find(ref, bytes) == nullptr) {
    return absl::OutOfRangeError(absl::StrCat(what, ": bytes ", ref.offset, " + ", bytes, " in buffer ",
                                              ref.buffer, " of ", entry.bytes, " bytes"));
  }
  if (writing && !entry.Writable()) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": buffer ", ref.buffer, " is read-only"));
  }
  return absl::InternalError(absl::StrCat(what, ": buffer ", ref.buffer, " is accessible"));
}

}  // namespace sluice::cuda
