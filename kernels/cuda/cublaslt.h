// cuBLASLt, loaded when it is asked for: a machine without it runs everything but PrefillMath::kFast. The few
// types, values and calls that we use are declared here, as the cuBLAS 13 documentation has them ("Using the
// cuBLASLt API"); where its header is found, the build compares both.
//
// Thread safety: LoadCublasLt() is thread-safe; the table is constant. A handle belongs to one thread.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace sluice::cuda::lt {

// Opaque objects of the library.
using Handle = struct Context*;
using MatmulDesc = struct MatmulDescObject*;
using MatrixLayout = struct MatrixLayoutObject*;
using Preference = struct PreferenceObject*;

using Status = int;  // cublasStatus_t
inline constexpr Status kSuccess = 0;
inline constexpr int kCompute32F = 68;     // cublasComputeType_t
inline constexpr int32_t kTransposed = 1;  // cublasOperation_t

enum class DescAttribute : int { kTransA = 3, kTransB = 4 };
enum class PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,    // uint64_t
  kReductionSchemeMask = 3,  // uint32_t; 0: no scheme that splits K
  kMinAlignmentA = 5,        // uint32_t, bytes; this one and the next three
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};

struct Algo {
  uint64_t data[8];
};
struct HeuristicResult {
  Algo algo;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// X(member, symbol's name behind "cublasLt", result, parameters).
#define SLUICE_CUBLASLT_CALLS(X)                                                                         \
  X(get_version, GetVersion, size_t, ())                                                                 \
  X(create, Create, Status, (Handle*))                                                                   \
  X(destroy, Destroy, Status, (Handle))                                                                  \
  X(desc_create, MatmulDescCreate, Status, (MatmulDesc*, int compute, cudaDataType_t scale))             \
  X(desc_set, MatmulDescSetAttribute, Status, (MatmulDesc, DescAttribute, const void*, size_t bytes))    \
  X(desc_destroy, MatmulDescDestroy, Status, (MatmulDesc))                                               \
  X(layout_create, MatrixLayoutCreate, Status,                                                           \
    (MatrixLayout*, cudaDataType_t, uint64_t rows, uint64_t cols, int64_t ld))                           \
  X(layout_destroy, MatrixLayoutDestroy, Status, (MatrixLayout))                                         \
  X(preference_create, MatmulPreferenceCreate, Status, (Preference*))                                    \
  X(preference_set, MatmulPreferenceSetAttribute, Status,                                                \
    (Preference, PreferenceAttribute, const void*, size_t bytes))                                        \
  X(preference_destroy, MatmulPreferenceDestroy, Status, (Preference))                                   \
  X(get_heuristic, MatmulAlgoGetHeuristic, Status,                                                       \
    (Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d, Preference,     \
     int wanted, HeuristicResult*, int* found))                                                          \
  X(matmul, Matmul, Status,                                                                              \
    (Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout, const void* b, MatrixLayout,    \
     const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout, const Algo*, void* workspace, \
     size_t workspace_bytes, cudaStream_t))

// The library's functions.
struct Api {
#define SLUICE_CUBLASLT_MEMBER(member, Name, Result, Parameters) Result(*member) Parameters = nullptr;
  SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_MEMBER)
#undef SLUICE_CUBLASLT_MEMBER
};

// The environment variable with the library's path. Without it the loader's search decides, then the folder
// of deploy/install_deps.sh.
inline constexpr char kPathVariable[] = "SLUICE_CUBLASLT";

// Loads the library for the rest of the process' life. FAILED_PRECONDITION: it is missing, lacks a symbol, or
// is of another major version than 13; with what the loader says.
absl::StatusOr<Api> LoadCublasLt();

}  // namespace sluice::cuda::lt
