// CUDA's errors as statuses: the one place where they are converted.
//
// Thread safety: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::cuda {

// OK, or RESOURCE_EXHAUSTED for memory, INVALID_ARGUMENT for what a call does not take, INTERNAL for all
// else, naming `what` and CUDA's words.
inline absl::Status StatusOf(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorString(error), " (CUDA error ", static_cast<int>(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorInvalidValue:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace sluice::cuda
