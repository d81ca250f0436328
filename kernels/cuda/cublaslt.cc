#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <type_traits>
static_assert(CUBLAS_COMPUTE_32F == sluice::cuda::lt::kCompute32F);
static_assert(CUBLAS_STATUS_SUCCESS == sluice::cuda::lt::kSuccess);
static_assert(CUBLAS_OP_T == sluice::cuda::lt::kTransposed);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == static_cast<int>(sluice::cuda::lt::DescAttribute::kTransA));
static_assert(CUBLASLT_MATMUL_DESC_TRANSB == static_cast<int>(sluice::cuda::lt::DescAttribute::kTransB));
#define SLUICE_SAME(theirs, ours)                \
  static_assert(CUBLASLT_MATMUL_PREF_##theirs == \
                static_cast<int>(sluice::cuda::lt::PreferenceAttribute::ours))
SLUICE_SAME(MAX_WORKSPACE_BYTES, kMaxWorkspaceBytes);
SLUICE_SAME(REDUCTION_SCHEME_MASK, kReductionSchemeMask);
SLUICE_SAME(MIN_ALIGNMENT_A_BYTES, kMinAlignmentA);
SLUICE_SAME(MIN_ALIGNMENT_B_BYTES, kMinAlignmentB);
SLUICE_SAME(MIN_ALIGNMENT_C_BYTES, kMinAlignmentC);
SLUICE_SAME(MIN_ALIGNMENT_D_BYTES, kMinAlignmentD);
#undef SLUICE_SAME
static_assert(sizeof(cublasStatus_t) == sizeof(sluice::cuda::lt::Status));
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(sluice::cuda::lt::Algo));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(sluice::cuda::lt::HeuristicResult));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) ==
              offsetof(sluice::cuda::lt::HeuristicResult, workspace_bytes));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) ==
              offsetof(sluice::cuda::lt::HeuristicResult, state));

namespace {

// Functions that are called in the same way: parameter by parameter both are numbers or enumerations of one
// size, or pointers.
template <typename A, typename B>
constexpr bool kSameKind =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;
template <typename A, typename B>
struct SameCall : std::false_type {};
template <typename R, typename S, typename... A, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kSameKind<R, S> && (kSameKind<A, B> && ...)> {
};
#define SLUICE_CUBLASLT_SAME(member, Name, Result, Parameters) \
  static_assert(SameCall<decltype(&cublasLt##Name), decltype(sluice::cuda::lt::Api::member)>::value);
SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_SAME)
#undef SLUICE_CUBLASLT_SAME

}  // namespace
#endif

namespace sluice::cuda::lt {
namespace {

constexpr size_t kMajor = 13;

std::vector<std::string> Paths() {
  const char* const path = std::getenv(kPathVariable);
  if (path != nullptr && *path != '\0') {
    return {path};
  }
  return {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"};
}

absl::StatusOr<void*> Open() {
  std::string why;
  for (const std::string& path : Paths()) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    absl::StrAppend(&why, why.empty() ? "" : "; ", dlerror());
  }
  return absl::FailedPreconditionError(absl::StrCat("cuBLASLt is missing (", why,
                                                    "); deploy/install_deps.sh --cublas installs it, ",
                                                    kPathVariable, " names another path"));
}

}  // namespace

absl::StatusOr<Api> LoadCublasLt() {
  ASSIGN_OR_RETURN(void* const library, Open());
  Api api;
#define SLUICE_CUBLASLT_LOAD(member, Name, Result, Parameters)                           \
  api.member = reinterpret_cast<decltype(api.member)>(dlsym(library, "cublasLt" #Name)); \
  if (api.member == nullptr) {                                                           \
    return absl::FailedPreconditionError("cuBLASLt lacks the symbol cublasLt" #Name);    \
  }
  SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_LOAD)
#undef SLUICE_CUBLASLT_LOAD
  const size_t version = api.get_version();
  if (version / 10000 != kMajor) {
    return absl::FailedPreconditionError(absl::StrCat("cuBLASLt is of version ", version / 10000, ".",
                                                      version / 100 % 100, ", ", kMajor, " is needed"));
  }
  return api;
}

}  // namespace sluice::cuda::lt
