// Handles by which one process names memory of its device to another.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

// Kind of a memory handle. The values cross processes: frozen.
enum class HandleKind : uint8_t {
  kMemoryFile = 1,  // a descriptor of host memory, sealed against shrinking: to be mapped
  kCudaFd = 2,      // descriptor of a CUDA virtual memory allocation: to be imported
  kCudaIpc = 3,     // bytes that name a whole cudaMalloc allocation: to be opened, in another process
};

inline constexpr std::array<HandleKind, 3> kHandleKinds = {HandleKind::kMemoryFile, HandleKind::kCudaFd,
                                                           HandleKind::kCudaIpc};

// The bytes of a handle that is not a descriptor (cudaIpcMemHandle_t); zeros if it is one. They grant access
// to the memory: never log them.
using HandleBytes = std::array<uint8_t, 64>;

// Number of descriptors that a handle of this kind consists of.
constexpr size_t DescriptorsOf(HandleKind kind) { return kind == HandleKind::kCudaIpc ? 0 : 1; }

constexpr bool IsCudaHandle(HandleKind kind) {
  return kind == HandleKind::kCudaFd || kind == HandleKind::kCudaIpc;
}

// Name in logs and metrics.
constexpr const char* NameOf(HandleKind kind) {
  return kind == HandleKind::kMemoryFile ? "memfd" : kind == HandleKind::kCudaFd ? "vmm" : "ipc";
}

// Identity of the device that holds the memory, as reported by the device; zeros: the host.
using DeviceUuid = std::array<uint8_t, 16>;

}  // namespace sluice
