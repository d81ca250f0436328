// The one symbol of the module that daemons load (common/protocol/cuda_module.h).

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/protocol/cuda_module.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_copier.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_status.h"

namespace sluice {
namespace {

absl::Status Check() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver || found == cudaErrorStubLibrary) {
    return absl::FailedPreconditionError(
        absl::StrCat("device cuda: the driver is missing or older than CUDA ", CUDART_VERSION / 1000, ".",
                     CUDART_VERSION / 10 % 100, "; Debian has it as the package nvidia-driver"));
  }
  if (found != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device cuda: the device is missing: ", found == cudaSuccess ? "no GPU" : cudaGetErrorString(found),
        "; nvidia-smi -L lists what the driver sees, CUDA_VISIBLE_DEVICES may hide it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CudaDeviceFacts> Facts() {
  CudaDeviceFacts facts;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(cuda::StatusOf(cudaGetDeviceProperties(&properties, 0), "properties of the GPU"));
  facts.name = properties.name;
  std::memcpy(facts.uuid.data(), properties.uuid.bytes, facts.uuid.size());
  facts.capability = static_cast<uint32_t>(properties.major * 10 + properties.minor);
  RETURN_IF_ERROR(cuda::StatusOf(cudaSetDevice(0), properties.name));
  RETURN_IF_ERROR(cuda::StatusOf(cudaFree(nullptr), "a context on the GPU"));
  size_t free = 0;
  size_t total = 0;
  RETURN_IF_ERROR(cuda::StatusOf(cudaMemGetInfo(&free, &total), "device memory"));
  facts.total_bytes = total;
  facts.free_bytes = free;
  ASSIGN_OR_RETURN(const HandleKind shared, cuda::SharedKindOf(0, SharedHandle::kBest));
  ASSIGN_OR_RETURN(facts.granule_bytes, cuda::SharedGranule(0, shared));
  return facts;
}

Backend* NewBackend(const BackendLimits& limits, absl::Status* error) {
  auto backend = CreateCudaBackend(limits);
  *error = backend.status();
  return backend.ok() ? backend->release() : nullptr;
}

Copier* NewCopier(absl::Status* error) {
  *error = Check();
  return error->ok() ? new cuda::CudaCopier({}) : nullptr;
}

constexpr CudaModuleApi kApi = {SLUICE_CUDA_INTERFACE, Check, Facts, NewBackend, NewCopier};

}  // namespace
}  // namespace sluice

extern "C" __attribute__((visibility("default"))) const sluice::CudaModuleApi* sluice_cuda_module() {
  return &sluice::kApi;
}
