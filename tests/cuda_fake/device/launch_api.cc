// Functions that nvcc's objects call: registration, and launches by <<<>>> or by cudaLaunchKernel.
#include <vector>

#include "tests/cuda_fake/device/machine.h"

using sluice::cuda_fake::Dim;
using sluice::cuda_fake::GlobalRegistry;
using sluice::cuda_fake::Machine;
using sluice::cuda_fake::MachineLock;

namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

// <<<>>> pushes, the stub pops.
std::vector<CallConfiguration>& Configurations() {
  static thread_local std::vector<CallConfiguration> all;
  return all;
}

Dim DimOf(dim3 d) { return {d.x, d.y, d.z}; }

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) { return reinterpret_cast<void**>(wrapper); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  const MachineLock lock;
  GlobalRegistry().kernels.push_back({binary, host, name});
}

void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, size_t, int, int) {
  const MachineLock lock;
  GlobalRegistry().variables.push_back({binary, host, name});
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  const MachineLock lock;
  Configurations().push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const MachineLock lock;
  if (Configurations().empty()) {
    return cudaErrorMissingConfiguration;
  }
  const CallConfiguration configuration = Configurations().back();
  Configurations().pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

// A kernel's handle is its stub.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  const MachineLock lock;
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** args, size_t shared,
                             cudaStream_t stream) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  uint32_t number = 0;
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (!machine.StreamOf(stream, &number)) {
    return machine.Misuse(cudaErrorInvalidResourceHandle, "a launch in a stream that does not live");
  }
  return machine.Launch(stub, DimOf(grid), DimOf(block), args, shared, number);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared,
                               cudaStream_t stream) {
  const MachineLock lock;
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, args, shared, stream);
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  const MachineLock lock;
  Machine& machine = Machine::Get();
  if (const cudaError_t error = machine.Enter(); error != cudaSuccess) {
    return error;
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return machine.Misuse(cudaErrorInvalidValue,
                          "cudaFuncSetAttribute with an attribute that the fake does not know");
  }
  return value < 0 ? machine.Leave(cudaErrorInvalidValue)
                   : machine.AllowShared(stub, static_cast<uint64_t>(value));
}

}  // extern "C"
