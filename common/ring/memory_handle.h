// How one process names memory of its device to another.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

// What names shared memory. The values cross processes: frozen.
enum class HandleKind : uint8_t {
  kMemoryFile = 1,  // a descriptor of the host's memory, sealed against shrinking: to be mapped
  kCudaFd = 2,      // one of an allocation of CUDA's virtual memory management: to be imported
  kCudaIpc = 3,     // bytes that name a whole allocation of cudaMalloc's: to be opened, in another process
};

inline constexpr std::array<HandleKind, 3> kHandleKinds = {HandleKind::kMemoryFile, HandleKind::kCudaFd,
                                                           HandleKind::kCudaIpc};

// The bytes of a handle that is no descriptor (cudaIpcMemHandle_t); zeros where it is one. They are as good
// as the memory itself: not for logs.
using HandleBytes = std::array<uint8_t, 64>;

// Descriptors that a handle of this kind consists of.
constexpr size_t DescriptorsOf(HandleKind kind) { return kind == HandleKind::kCudaIpc ? 0 : 1; }

constexpr bool IsOfCuda(HandleKind kind) {
  return kind == HandleKind::kCudaFd || kind == HandleKind::kCudaIpc;
}

// As logs and metrics call it.
constexpr const char* NameOf(HandleKind kind) {
  return kind == HandleKind::kMemoryFile ? "memfd" : kind == HandleKind::kCudaFd ? "vmm" : "ipc";
}

// Which device memory lies on, as the device itself says; zeros: the host.
using DeviceUuid = std::array<uint8_t, 16>;

}  // namespace sluice
