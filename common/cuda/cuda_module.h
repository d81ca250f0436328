// The module of the device cuda: one shared object that holds everything which includes a CUDA header. A
// daemon loads it when it is told to use that device, so one build serves machines with and without a GPU.
//
// Thread safety: the functions here are thread-safe; the table is constant.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ring/memory_handle.h"
#include "common/transfer/copier.h"

namespace sluice {

class Backend;
struct BackendLimits;

// The GPU that the device cuda is, asked for with our context in place.
struct CudaDeviceFacts {
  std::string name;
  DeviceUuid uuid = {};
  uint32_t capability = 0;  // 80 for 8.0
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;     // not used by any process
  uint64_t granule_bytes = 0;  // shared memory takes whole ones
};

// What the module does for its daemon. It is found by one C symbol; what it returns are objects of the
// interfaces below, which live no longer than the process.
struct CudaModuleApi {
  // Of the headers that both sides were compiled from; nothing else is looked at where it differs.
  const char* interface_digest;
  // FAILED_PRECONDITION naming what is missing: a driver (or a newer one), or a device.
  absl::Status (*check)();
  // Makes our context first, which takes device memory and some tenths of a second.
  absl::StatusOr<CudaDeviceFacts> (*facts)();
  // kernels/cuda/cuda_backend.h. The caller owns it; null with the reason in `error`.
  Backend* (*new_backend)(const BackendLimits& limits, absl::Status* error);
  // kernels/cuda/copy/cuda_copier.h. Makes no context before its first Open().
  Copier* (*new_copier)(absl::Status* error);
};

inline constexpr char kCudaModuleSymbol[] = "sluice_cuda_module";
using CudaModuleFn = const CudaModuleApi*();

// Where the module is looked for: what SLUICE_CUDA_MODULE names, or else beside the program and where a
// package puts it.
std::vector<std::string> CudaModulePaths();

// Loads it, once for the process, and checks driver and device. FAILED_PRECONDITION naming the one of module,
// driver and device that is missing and how to get it.
absl::StatusOr<const CudaModuleApi*> LoadCudaModule();

}  // namespace sluice
