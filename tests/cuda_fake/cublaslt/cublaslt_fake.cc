// A fake of cuBLASLt for tests, loaded by SLUICE_CUBLASLT: the calls that kernels/cuda/cublaslt.h declares,
// for products of transposed 16-bit weights with rows, computed on the CPU when their turn in the stream
// comes. It refuses, and reports, whatever differs from that: types, layouts, alignment, an algorithm of
// another shape, memory that is not the device's.
//
// SLUICE_FAKE_CUBLASLT names a defect: "rows" (the order of a sum depends on the number of rows),
// "neighbours" (a sum depends on the row behind), "values" (wrong sums), "workspace" (algorithms want one),
// "none" (there is no algorithm), "old" (version 12).
#include <immintrin.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "tests/cuda_fake/device/library_calls.h"

namespace sluice::cuda::lt {

struct Context {
  cuda_fake::LibraryDevice* device = nullptr;
  std::string defect;
};
struct MatmulDescObject {
  bool transposed = false;  // the weights
};
struct MatrixLayoutObject {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t ld = 0;
};
struct PreferenceObject {
  uint64_t workspace = 32 << 20;
  uint32_t schemes = ~0u;
};

namespace {

using cuda_fake::LibraryCall;
using cuda_fake::LibraryDevice;
using cuda_fake::LibraryMatrix;

constexpr Status kNotInitialized = 1;
constexpr Status kInvalidValue = 7;
constexpr Status kExecutionFailed = 13;
constexpr Status kNotSupported = 15;
constexpr uint64_t kMark = 0x46414b45;  // of this library's algorithms

std::string Defect() {
  const char* const defect = std::getenv("SLUICE_FAKE_CUBLASLT");
  return defect == nullptr ? "" : defect;
}

LibraryDevice* FindDevice() {
  const char* const text = std::getenv(cuda_fake::kLibraryDeviceVariable);
  int pid = 0;
  unsigned long long address = 0;
  const bool known = text != nullptr && std::sscanf(text, "%d:%llu", &pid, &address) == 2 && pid == getpid();
  return known ? reinterpret_cast<LibraryDevice*>(static_cast<uintptr_t>(address)) : nullptr;
}

bool IsHalf(cudaDataType_t type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }

// weights: [k, n], transposed; x: [k, rows]; sums: [n, rows], all column-major.
bool IsProduct(const MatmulDescObject& desc, const MatrixLayoutObject& weights, const MatrixLayoutObject& x,
               const MatrixLayoutObject& sums) {
  return desc.transposed && IsHalf(weights.type) && x.type == weights.type && sums.type == CUDA_R_32F &&
         weights.rows == x.rows && sums.rows == weights.cols && sums.cols == x.cols &&
         weights.ld >= weights.rows && x.ld >= x.rows && sums.ld >= sums.rows && 2 * weights.ld % 16 == 0 &&
         2 * x.ld % 16 == 0 && 4 * sums.ld % 16 == 0;
}

std::vector<float> Floats(const MatrixLayoutObject& layout, const uint8_t* bytes) {
  std::vector<float> floats(layout.rows * layout.cols);
  for (uint64_t col = 0; col < layout.cols; ++col) {
    const auto* const from = reinterpret_cast<const uint16_t*>(bytes) + col * layout.ld;
    float* const to = &floats[col * layout.rows];
    for (uint64_t row = 0; row < layout.rows; ++row) {
      if (layout.type == CUDA_R_16F) {
        to[row] = _cvtsh_ss(from[row]);
      } else {
        const uint32_t word = uint32_t{from[row]} << 16;
        std::memcpy(&to[row], &word, 4);
      }
    }
  }
  return floats;
}

// Sixteen running sums: the compiler makes vectors of them.
float Dot(const float* a, const float* b, uint64_t count, bool backwards) {
  constexpr uint64_t kSums = 16;
  float sums[kSums] = {};
  uint64_t k = 0;
  for (; k + kSums <= count; k += kSums) {
    for (uint64_t i = 0; i < kSums; ++i) {
      sums[i] += a[k + i] * b[k + i];
    }
  }
  for (; k < count; ++k) {
    sums[k % kSums] += a[k] * b[k];
  }
  float all = 0;
  for (uint64_t i = 0; i < kSums; ++i) {
    all += sums[backwards ? kSums - 1 - i : i];
  }
  return all;
}

void Multiply(const std::string& defect, const MatrixLayoutObject& weights, const MatrixLayoutObject& x,
              const MatrixLayoutObject& sums, const std::vector<uint8_t*>& places) {
  const std::vector<float> w = Floats(weights, places[0]);
  const std::vector<float> rows = Floats(x, places[1]);
  const uint64_t k = weights.rows;
  auto* const out = reinterpret_cast<float*>(places[2]);
  const bool backwards = defect == "rows" && x.cols > 256;
  for (uint64_t t = 0; t < x.cols; ++t) {
    for (uint64_t n = 0; n < weights.cols; ++n) {
      float sum = Dot(&w[n * k], &rows[t * k], k, backwards);
      if (defect == "neighbours" && t + 1 < x.cols) {
        sum += 1e-6f * rows[(t + 1) * k];
      } else if (defect == "values" && n % 2 == 1) {
        sum = -sum;
      }
      out[t * sums.ld + n] = sum;
    }
  }
}

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename T>
Status Set(T* member, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) {
    return kInvalidValue;
  }
  std::memcpy(member, value, bytes);
  return kSuccess;
}

}  // namespace

extern "C" {

#define SLUICE_EXPORT __attribute__((visibility("default")))

SLUICE_EXPORT size_t cublasLtGetVersion() { return Defect() == "old" ? 120803 : 130002; }

SLUICE_EXPORT Status cublasLtCreate(Handle* handle) {
  LibraryDevice* const device = FindDevice();
  *handle = device == nullptr ? nullptr : new Context{device, Defect()};
  return device == nullptr ? kNotInitialized : kSuccess;
}
SLUICE_EXPORT Status cublasLtDestroy(Handle handle) {
  delete handle;
  return kSuccess;
}

SLUICE_EXPORT Status cublasLtMatmulDescCreate(MatmulDesc* desc, int compute, cudaDataType_t scale) {
  if (compute != kCompute32F || scale != CUDA_R_32F) {
    return kNotSupported;
  }
  *desc = new MatmulDescObject;
  return kSuccess;
}
SLUICE_EXPORT Status cublasLtMatmulDescSetAttribute(MatmulDesc desc, DescAttribute attribute,
                                                    const void* value, size_t bytes) {
  int32_t operation = 0;
  const Status status = Set(&operation, value, bytes);
  if (status != kSuccess || attribute != DescAttribute::kTransA) {
    return kInvalidValue;
  }
  desc->transposed = operation == kTransposed;
  return kSuccess;
}
SLUICE_EXPORT Status cublasLtMatmulDescDestroy(MatmulDesc desc) {
  delete desc;
  return kSuccess;
}

SLUICE_EXPORT Status cublasLtMatrixLayoutCreate(MatrixLayout* layout, cudaDataType_t type, uint64_t rows,
                                                uint64_t cols, int64_t ld) {
  *layout = new MatrixLayoutObject{type, rows, cols, static_cast<uint64_t>(ld)};
  return kSuccess;
}
SLUICE_EXPORT Status cublasLtMatrixLayoutDestroy(MatrixLayout layout) {
  delete layout;
  return kSuccess;
}

SLUICE_EXPORT Status cublasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = new PreferenceObject;
  return kSuccess;
}
SLUICE_EXPORT Status cublasLtMatmulPreferenceSetAttribute(Preference preference,
                                                          PreferenceAttribute attribute, const void* value,
                                                          size_t bytes) {
  uint32_t alignment = 0;
  switch (attribute) {
    case PreferenceAttribute::kMaxWorkspaceBytes:
      return Set(&preference->workspace, value, bytes);
    case PreferenceAttribute::kReductionSchemeMask:
      return Set(&preference->schemes, value, bytes);
    default:
      return Set(&alignment, value, bytes);
  }
}
SLUICE_EXPORT Status cublasLtMatmulPreferenceDestroy(Preference preference) {
  delete preference;
  return kSuccess;
}

SLUICE_EXPORT Status cublasLtMatmulAlgoGetHeuristic(Handle handle, MatmulDesc desc, MatrixLayout weights,
                                                    MatrixLayout x, MatrixLayout c, MatrixLayout sums,
                                                    Preference preference, int wanted,
                                                    HeuristicResult* results, int* found) {
  *found = 0;
  if (wanted < 1 || !IsProduct(*desc, *weights, *x, *sums) || c != sums) {
    handle->device->Report("cuBLASLt: an algorithm for what is no product of rows with transposed weights");
    return kInvalidValue;
  }
  if (preference->workspace != 0 || preference->schemes != 0) {
    handle->device->Report("cuBLASLt: an algorithm that may split sums");
    return kInvalidValue;
  }
  if (handle->defect == "none") {
    return kNotSupported;
  }
  results[0] = {};
  results[0].algo = {{kMark, weights->cols, weights->rows, static_cast<uint64_t>(weights->type)}};
  results[0].workspace_bytes = handle->defect == "workspace" ? 1 << 20 : 0;
  *found = 1;
  return kSuccess;
}

SLUICE_EXPORT Status cublasLtMatmul(Handle handle, MatmulDesc desc, const void* alpha, const void* weights,
                                    MatrixLayout weights_layout, const void* x, MatrixLayout x_layout,
                                    const void* beta, const void* c, MatrixLayout c_layout, void* sums,
                                    MatrixLayout sums_layout, const Algo* algo, void* workspace,
                                    size_t workspace_bytes, cudaStream_t stream) {
  const MatrixLayoutObject& w = *weights_layout;
  const bool fits = IsProduct(*desc, w, *x_layout, *sums_layout) && c == sums && c_layout == sums_layout &&
                    IsAligned(weights) && IsAligned(x) && IsAligned(sums) && workspace == nullptr &&
                    workspace_bytes == 0 && *static_cast<const float*>(alpha) == 1 &&
                    *static_cast<const float*>(beta) == 0;
  if (!fits || algo->data[0] != kMark || algo->data[1] != w.cols || algo->data[2] != w.rows ||
      algo->data[3] != static_cast<uint64_t>(w.type)) {
    handle->device->Report("cuBLASLt: a product whose layouts, addresses or algorithm do not fit");
    return kInvalidValue;
  }
  LibraryCall call;
  call.name = "cublasLtMatmul of " + std::to_string(x_layout->cols) + " rows with [" +
              std::to_string(w.cols) + ", " + std::to_string(w.rows) + "]";
  call.matrices = {{weights, w.cols, 2 * w.rows, 2 * w.ld, false},
                   {x, x_layout->cols, 2 * x_layout->rows, 2 * x_layout->ld, false},
                   {sums, sums_layout->cols, 4 * sums_layout->rows, 4 * sums_layout->ld, true}};
  call.run = [defect = handle->defect, w, x = *x_layout, out = *sums_layout](
                 const std::vector<uint8_t*>& places) { Multiply(defect, w, x, out, places); };
  return handle->device->Submit(stream, std::move(call)) == cudaSuccess ? kSuccess : kExecutionFailed;
}

}  // extern "C"

}  // namespace sluice::cuda::lt
