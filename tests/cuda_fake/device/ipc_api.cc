// Legacy IPC: an allocation of cudaMalloc's that another process opens by 64 bytes. The fake's allocation
// moves into a memory file when its handle is taken, and the handle says which descriptor of which process
// that is: as CUDA's it is good in the same PID namespace, for the same user, and as long as the process has
// the memory.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"
#include "tests/cuda_fake/device/peer_order.h"

namespace sluice::cuda_fake {

// One side's hold on the file.
struct IpcFile {
  IpcFile(Machine* machine, int fd, bool foreign)
      : machine(machine),
        fd(fd),
        peers((foreign ? PeerOrder::Import : PeerOrder::Make)(fd, &machine->operations, &machine->reports)) {
    if (peers != nullptr) {
      machine->peers.insert(peers.get());
    }
  }
  IpcFile(const IpcFile&) = delete;
  IpcFile& operator=(const IpcFile&) = delete;
  ~IpcFile() {
    machine->peers.erase(peers.get());
    close(fd);
  }

  Machine* machine;
  int fd;
  std::unique_ptr<PeerOrder> peers;  // may be null
};

namespace {

constexpr char kIpcMagic[8] = "fakeipc";
constexpr uint64_t kIpcPage = 4096;

struct IpcName {
  char magic[sizeof(kIpcMagic)];
  int32_t pid;
  int32_t fd;
  uint64_t number;  // of the file: descriptors are given out again
  uint64_t bytes;
};
static_assert(sizeof(IpcName) <= sizeof(cudaIpcMemHandle_t));

uint64_t FileNumber(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 ? about.st_ino : 0;
}

// Moves the allocation into a file, once.
std::shared_ptr<IpcFile> ExportAllocation(Machine* machine, const Region& region) {
  std::shared_ptr<IpcFile>& known = machine->ipc_exported[region.base];
  if (known != nullptr) {
    return known;
  }
  const int fd = memfd_create("fake cuda memory", MFD_CLOEXEC);
  if (fd < 0 || !PeerOrder::Resize(fd, (region.size + kIpcPage - 1) / kIpcPage * kIpcPage)) {
    close(fd);
    return nullptr;
  }
  auto file = std::make_shared<IpcFile>(machine, fd, /*foreign=*/false);
  if (!machine->memory.MoveToFile(region.base, fd, file, file->peers.get())) {
    return nullptr;
  }
  return known = file;
}

// -1: the memory that the handle names is no more.
int OpenNamed(const IpcName& name) {
  const int fd = open(absl::StrCat("/proc/", name.pid, "/fd/", name.fd).c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0 && FileNumber(fd) != name.number) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

std::string UndefinedFree(Machine* machine, uint64_t address) {
  const auto found = machine->ipc_exported.find(address);
  const int peer =
      found == machine->ipc_exported.end() || found->second == nullptr || found->second->peers == nullptr
          ? 0
          : found->second->peers->OpenElsewhere();
  if (peer != 0) {
    return absl::StrCat("cudaFree of ", machine->memory.Near(address), ", which process ", peer,
                        " has open by cudaIpcOpenMemHandle");
  }
  machine->ipc_exported.erase(address);
  return "";
}

}  // namespace sluice::cuda_fake

using sluice::cuda_fake::ExportAllocation;
using sluice::cuda_fake::FileNumber;
using sluice::cuda_fake::IpcFile;
using sluice::cuda_fake::IpcName;
using sluice::cuda_fake::kGranularity;
using sluice::cuda_fake::kIpcMagic;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;
using sluice::cuda_fake::OpenNamed;
using sluice::cuda_fake::Region;

extern "C" {

// "Takes a pointer to the base of an existing device memory allocation created with cudaMalloc and exports it
// for use in another process" (Runtime API).
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const Region* const region = machine.memory.Find(address);
  if (region == nullptr || region->base != address || !machine.memory.IsAllocation(address)) {
    return machine.Misuse(cudaErrorInvalidValue,
                          absl::StrCat("cudaIpcGetMemHandle of ", machine.memory.Near(address)));
  }
  const std::shared_ptr<IpcFile> file = ExportAllocation(&machine, *region);
  if (file == nullptr) {
    return machine.Leave(cudaErrorMemoryAllocation);
  }
  IpcName name{{}, getpid(), file->fd, FileNumber(file->fd), region->size};
  std::memcpy(name.magic, kIpcMagic, sizeof(kIpcMagic));
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &name, sizeof(name));
  return machine.Leave(cudaSuccess);
}

// "Flags for this operation. Must be specified as cudaIpcMemLazyEnablePeerAccess"; "if the memory handle has
// already been opened by the current context, the reference count on the handle is incremented by 1 and the
// existing device pointer is returned" (Runtime API). A process that opens its own gets 201, the driver's
// CUDA_ERROR_INVALID_CONTEXT.
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  if (flags != cudaIpcMemLazyEnablePeerAccess) {
    return machine.Misuse(cudaErrorInvalidValue,
                          "cudaIpcOpenMemHandle without cudaIpcMemLazyEnablePeerAccess");
  }
  IpcName name;
  std::memcpy(&name, &handle, sizeof(name));
  if (std::memcmp(name.magic, kIpcMagic, sizeof(kIpcMagic)) != 0) {
    return machine.Leave(cudaErrorInvalidResourceHandle);
  }
  if (name.pid == getpid()) {
    return machine.Leave(cudaErrorDeviceUninitialized);
  }
  const int fd = OpenNamed(name);
  if (fd < 0) {
    return machine.Leave(cudaErrorMapBufferObjectFailed);
  }
  for (auto& [address, opened] : machine.ipc_opened) {
    if (opened.number == name.number) {
      close(fd);
      ++opened.references;
      *pointer = reinterpret_cast<void*>(address);
      return machine.Leave(cudaSuccess);
    }
  }
  auto file = std::make_shared<IpcFile>(&machine, fd, /*foreign=*/true);
  const uint64_t address = machine.memory.ReserveAddresses(name.bytes, kGranularity);
  sluice::cuda_fake::PeerOrder* const peers = file->peers.get();
  if (!machine.memory.Map(address, name.bytes, fd, 0, std::move(file), /*foreign=*/true, peers)) {
    return machine.Leave(cudaErrorMapBufferObjectFailed);
  }
  machine.memory.SetAccess(address, name.bytes, true, true);
  machine.ipc_opened[address] = {name.number, name.bytes, 1};
  *pointer = reinterpret_cast<void*>(address);
  return machine.Leave(cudaSuccess);
}

// "Decrements the reference count of the memory returned by cudaIpcOpenMemHandle by 1. When the reference
// count reaches 0, this API unmaps the memory" (Runtime API).
cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const auto found = machine.ipc_opened.find(reinterpret_cast<uint64_t>(pointer));
  if (found == machine.ipc_opened.end()) {
    return machine.Misuse(
        cudaErrorInvalidValue,
        absl::StrCat("cudaIpcCloseMemHandle of ", machine.memory.Near(reinterpret_cast<uint64_t>(pointer))));
  }
  if (--found->second.references == 0) {
    machine.memory.Unmap(found->first, found->second.bytes);
    machine.ipc_opened.erase(found);
  }
  return machine.Leave(cudaSuccess);
}

}  // extern "C"
