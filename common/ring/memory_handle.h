// How one process names memory of its device to another.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// What a descriptor of shared memory is. The values cross processes: frozen.
enum class HandleKind : uint8_t {
  kMemoryFile = 1,  // of the host, sealed against shrinking: to be mapped
  kCudaFd = 2,      // of an allocation of CUDA's virtual memory management: to be imported
};

// Which device memory lies on, as the device itself says; zeros: the host.
using DeviceUuid = std::array<uint8_t, 16>;

}  // namespace sluice
