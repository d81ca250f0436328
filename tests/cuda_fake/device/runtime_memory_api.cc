// The Runtime API's calls on memory and copies.
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/device/machine.h"

using sluice::cuda_fake::kPoison;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;
using sluice::cuda_fake::Operations;
using sluice::cuda_fake::UndefinedFree;

namespace {

constexpr size_t kHostAlignment = 4096;

cudaError_t BadStream(Machine& machine) {
  return machine.Misuse(cudaErrorInvalidResourceHandle, "a stream that does not live");
}

// True if the process may write all of these bytes, as far as they are mapped.
bool MayBeWritten(const void* pointer, size_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(pointer);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, rights) == 3 && from < begin + bytes &&
        begin < to && rights[1] != 'w') {
      return false;
    }
  }
  return true;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  if (pointer == nullptr) {
    return machine.Leave(cudaErrorInvalidValue);
  }
  *pointer = nullptr;
  if (bytes == 0) {
    return machine.Leave(cudaSuccess);
  }
  *pointer = reinterpret_cast<void*>(machine.memory.Allocate(bytes, "device memory"));
  return machine.Leave(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

// "Managing memory allocations using cudaMalloc and cudaFree causes GPU to synchronize across all executing
// CUDA streams" (Programming Guide, Stream Ordered Memory Allocator).
cudaError_t cudaFree(void* pointer) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess || pointer == nullptr) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  machine.operations.FinishAll();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (std::string undefined = UndefinedFree(&machine, address); !undefined.empty()) {
    return machine.Misuse(cudaErrorInvalidValue, std::move(undefined));
  }
  if (!machine.memory.Free(address)) {
    return machine.Misuse(cudaErrorInvalidValue, absl::StrCat("cudaFree of ", machine.memory.Near(address)));
  }
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  *pointer =
      std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
  if (*pointer == nullptr || !machine.memory.RegisterHost(*pointer, bytes)) {
    return machine.Leave(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, kPoison, bytes);
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  const MachineLock lock;
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess || pointer == nullptr) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  machine.operations.FinishAll();
  if (!machine.memory.UnregisterHost(pointer)) {
    return machine.Misuse(cudaErrorInvalidValue, "cudaFreeHost of memory that is not cudaHostAlloc's");
  }
  std::free(pointer);
  return machine.Leave(cudaSuccess);
}

// "Memory page-locked by this method cannot be registered again before it is unregistered" (Runtime API,
// 712). Pages that the host may not write are refused without cudaHostRegisterReadOnly, for the driver pins
// them to be written (open-gpu-kernel-modules, os-mlock.c); "using this flag without a device that supports
// it" is cudaErrorNotSupported.
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  if (pointer == nullptr || bytes == 0) {
    return machine.Leave(cudaErrorInvalidValue);
  }
  const bool read_only = (flags & cudaHostRegisterReadOnly) != 0;
  if (read_only && !machine.options.read_only_pages) {
    return machine.Leave(cudaErrorNotSupported);
  }
  if (!read_only && !MayBeWritten(pointer, bytes)) {
    return machine.Leave(cudaErrorInvalidValue);
  }
  return machine.Leave(machine.memory.RegisterHost(pointer, bytes) ? cudaSuccess
                                                                   : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = machine.ForbidInCapture(); error != cudaSuccess) {
    return machine.Leave(error);
  }
  machine.operations.FinishAll();
  return machine.Leave(machine.memory.UnregisterHost(pointer) ? cudaSuccess
                                                              : cudaErrorHostMemoryNotRegistered);
}

// With unified addressing the device uses the host's address.
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.memory.IsRegistered(host, 1)) {
    return machine.Leave(cudaErrorInvalidValue);
  }
  *device = host;
  return machine.Leave(cudaSuccess);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  const cudaError_t error = machine.Enter();
  return error != cudaSuccess ? error : machine.Copy(to, from, bytes, kind, Operations::kLegacy, false);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  return machine.StreamOf(stream, &number) ? machine.Copy(to, from, bytes, kind, number, true)
                                           : BadStream(machine);
}

// Rows one by one, in order: the calls' effects are those of so many copies in the stream.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return BadStream(machine);
  }
  // "It is an error if width exceeds either dpitch or spitch" (Runtime API, cudaMemcpy2D).
  if (width > to_pitch || width > from_pitch) {
    return machine.Misuse(
        cudaErrorInvalidPitchValue,
        absl::StrCat("a copy of rows of ", width, " bytes with pitches ", to_pitch, " and ", from_pitch));
  }
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        machine.Copy(static_cast<std::byte*>(to) + row * to_pitch,
                     static_cast<const std::byte*>(from) + row * from_pitch, width, kind, number, true);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  const cudaError_t error = machine.Enter();
  return error != cudaSuccess ? error : machine.Set(to, value, bytes, Operations::kLegacy);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  return machine.StreamOf(stream, &number) ? machine.Set(to, value, bytes, number) : BadStream(machine);
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  const absl::StatusOr<uint64_t> address = machine.modules.Variable(symbol);
  if (!address.ok()) {
    return machine.Misuse(cudaErrorInvalidSymbol, std::string(address.status().message()));
  }
  return machine.Copy(reinterpret_cast<void*>(*address + offset), from, bytes, kind, Operations::kLegacy,
                      false);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  *total = machine.memory.total();
  *free = machine.memory.total() - machine.memory.used();
  return machine.Enter();
}

}  // extern "C"
