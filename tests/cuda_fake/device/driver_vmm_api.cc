// The Driver API's virtual memory calls: an allocation is a memory file, so that two processes can share it
// and the kernel counts its references.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"
#include "tests/cuda_fake/device/peer_order.h"

namespace sluice::cuda_fake {

struct MemoryFile {
  MemoryFile(Machine* machine, int fd, uint64_t bytes, bool foreign)
      : machine(machine),
        fd(fd),
        bytes(bytes),
        foreign(foreign),
        peers((foreign ? PeerOrder::Import : PeerOrder::Make)(fd, &machine->operations, &machine->reports)) {
    if (peers != nullptr) {
      machine->peers.insert(peers.get());
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  // CUDA allows that, and keeps the memory: an exporter who counts on having freed it has not.
  ~MemoryFile() {
    if (const int peer = foreign || peers == nullptr ? 0 : peers->OpenElsewhere(); peer != 0) {
      const std::string text =
          absl::StrCat("device memory of ", bytes, " bytes is given up (cuMemRelease, ",
                       "cuMemUnmap) while process ", peer, " has it mapped, and stays taken");
      machine->reports.Add(Finding::kApi, text, text);
    }
    machine->peers.erase(peers.get());
    close(fd);
    if (!foreign) {
      machine->memory.Return(bytes);
    }
  }

  Machine* machine;
  int fd;
  uint64_t bytes;
  bool foreign;                      // imported: the exporter's budget pays for it
  std::unique_ptr<PeerOrder> peers;  // may be null
};

namespace {

CUresult Result(cudaError_t error) {
  return static_cast<CUresult>(error);
}  // the codes used here are the same

CUresult Misuse(std::string text) {
  return Result(Machine::Get().Misuse(cudaErrorInvalidValue, std::move(text)));
}

MemoryFile* FileOf(CUmemGenericAllocationHandle handle) {
  const auto it = Machine::Get().files.find(handle);
  return it == Machine::Get().files.end() ? nullptr : it->second.get();
}

CUmemGenericAllocationHandle Keep(std::shared_ptr<MemoryFile> file) {
  Machine& machine = Machine::Get();
  const uint64_t handle = machine.next_handle++;
  machine.files[handle] = std::move(file);
  return handle;
}

void PoisonFile(int fd, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) {
    std::memset(memory, kPoison, bytes);
    munmap(memory, bytes);
  }
}

}  // namespace
}  // namespace sluice::cuda_fake

using sluice::cuda_fake::FileOf;
using sluice::cuda_fake::Keep;
using sluice::cuda_fake::kGranularity;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;
using sluice::cuda_fake::MemoryFile;
using sluice::cuda_fake::Misuse;
using sluice::cuda_fake::PeerOrder;
using sluice::cuda_fake::PoisonFile;
using sluice::cuda_fake::Region;
using sluice::cuda_fake::Result;

extern "C" {

CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const MachineLock lock;
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const MachineLock lock;
  if (attribute != CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
    return Misuse("an attribute of devices that the fake does not know");
  }
  *value = Machine::Get().options.descriptors ? 1 : 0;
  return CUDA_SUCCESS;
}

// "Get information on memory allocations. Returns the base address in *pbase and size in *psize" (Driver
// API).
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const MachineLock lock;
  const Machine& machine = Machine::Get();
  const Region* const region = machine.memory.Find(address);
  if (region == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  const uint64_t margin = machine.ipc_opened.contains(region->base) ? machine.options.ipc_margin : 0;
  *base = region->base - margin;
  *bytes = region->size + 2 * margin;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  const MachineLock lock;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

// "size must be a multiple of the granularity" (Driver API, cuMemCreate).
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return Result(error);
  }
  if (properties->requestedHandleTypes != 0 && !machine.options.descriptors) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (bytes == 0 || bytes % kGranularity != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return Misuse(absl::StrCat("cuMemCreate of ", bytes, " bytes of type ", properties->type));
  }
  if (!machine.memory.Reserve(bytes)) {
    return Result(machine.Leave(cudaErrorMemoryAllocation));
  }
  const int fd = memfd_create("fake cuda memory", MFD_CLOEXEC);
  if (fd < 0 || !PeerOrder::Resize(fd, bytes)) {
    machine.memory.Return(bytes);
    return Result(machine.Leave(cudaErrorMemoryAllocation));
  }
  PoisonFile(fd, bytes);
  *handle = Keep(std::make_shared<MemoryFile>(&machine, fd, bytes, false));
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  const MachineLock lock;
  const MemoryFile* const file = FileOf(handle);
  if (file == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return Misuse("cuMemExportToShareableHandle of no allocation, or to another type than a file descriptor");
  }
  const int copy = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
  std::memcpy(shareable, &copy, sizeof(copy));
  return copy < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

// The descriptor stays the caller's, who may close it behind the call.
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  const MachineLock lock;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  if (!Machine::Get().options.descriptors) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fcntl(fd, F_GETFD) < 0) {
    return Misuse("cuMemImportFromShareableHandle of no file descriptor");
  }
  *handle = Keep(std::make_shared<MemoryFile>(&Machine::Get(), fcntl(fd, F_DUPFD_CLOEXEC, 0),
                                              PeerOrder::DataBytes(fd), true));
  return CUDA_SUCCESS;
}

// "The memory is freed when all handles are released and all mappings unmapped" (Driver API, cuMemRelease).
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const MachineLock lock;
  return Machine::Get().files.erase(handle) == 1 ? CUDA_SUCCESS : Misuse("cuMemRelease of no allocation");
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long) {
  const MachineLock lock;
  if (bytes == 0 || bytes % kGranularity != 0) {
    return Misuse(absl::StrCat("cuMemAddressReserve of ", bytes, " bytes"));
  }
  *address = Machine::Get().memory.ReserveAddresses(bytes, alignment);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) {
  const MachineLock lock;
  return CUDA_SUCCESS;
}  // addresses are never given out again

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  const auto file = machine.files.find(handle);
  if (file == machine.files.end() || bytes % kGranularity != 0 || offset % kGranularity != 0 ||
      offset + bytes > file->second->bytes) {
    return Misuse(absl::StrCat("cuMemMap of ", bytes, " bytes at ", offset, " of no such allocation"));
  }
  return machine.memory.Map(address, bytes, file->second->fd, offset, file->second, file->second->foreign,
                            file->second->peers.get())
             ? CUDA_SUCCESS
             : Misuse("cuMemMap over a mapping");
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const MachineLock lock;
  return Machine::Get().memory.Unmap(address, bytes) ? CUDA_SUCCESS : Misuse("cuMemUnmap of no mapping");
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const MachineLock lock;
  if (count != 1) {
    return Misuse("cuMemSetAccess for other than one device");
  }
  const bool writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const bool readable = writable || access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
  return Machine::Get().memory.SetAccess(address, bytes, readable, writable)
             ? CUDA_SUCCESS
             : Misuse("cuMemSetAccess of no mapping");
}

}  // extern "C"
