// Products of many rows by cuBLASLt (PrefillMath::kFast): y = residual + scale * (x . weights + bias) in
// 16-bit floats with sums of f32.
//
// Weights of bf16 and f16 are read where they lie, if their rows are whole 16 bytes; all others are expanded
// to f16, a tile of rows at a time, into a buffer that the L2 cache holds. Activations become f16, or bf16
// for weights of bf16; those of quantized weights are first rounded as the exact product rounds them
// (ARITHMETIC.md 2 b), so that both arithmetics multiply the same numbers: what is left between them is 2^-11
// of each factor.
//
// A row's bits depend on nothing but the row and the weights: one algorithm for each type and shape
// multiplies any number of rows, padded to a multiple of 64, without splitting sums. That no library
// promises; the self-test of Create() proves it on the device.
//
// Thread safety: thread-compatible; owned by one Device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/calls.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/device/half_rows.h"
#include "kernels/cuda/device/matrix.h"

namespace sluice::cuda {

// Rows of a call of the library: a multiple of the first, at most the second.
inline constexpr uint32_t kFastRowStep = 64;
inline constexpr uint32_t kFastRows = 512;
// The fewest rows worth it.
inline constexpr uint32_t kLeastFastRows = 64;

class FastProducts {
 public:
  // Loads the library and proves every shape on the device. FAILED_PRECONDITION: the library is missing or
  // unfit, or a product fails its self-test, with the numbers. RESOURCE_EXHAUSTED: no memory for buffers.
  // `max_tokens`: rows of one Begin().
  static absl::StatusOr<std::unique_ptr<FastProducts>> Create(const std::vector<DenseShape>& shapes,
                                                              uint32_t max_tokens, cudaStream_t stream);
  // REQUIRES: nothing enqueued uses its buffers.
  ~FastProducts();
  FastProducts(const FastProducts&) = delete;
  FastProducts& operator=(const FastProducts&) = delete;

  // True if these weights have a proven product.
  bool Takes(const CallWeights& weights) const;

  // The rows of the products that follow, until the next call; their addresses must stay as they are.
  struct Rows {
    const float* x = nullptr;  // for plain weights
    uint64_t x_stride = 0;
    uint32_t tokens = 0;
  };
  void Begin(const Rows& rows);
  // Enqueues y for all rows. `finish` has the fields from `bias` on, but `tokens`; `rounded`: the rows
  // rounded for the weights' groups, or null for plain weights. REQUIRES: Takes().
  absl::Status Multiply(const DeviceMatrix& weights, const uint8_t* rounded, const FinishLaunch& finish,
                        Launcher& launcher);

  // "cuBLASLt 13.0.2, 5 products proven".
  std::string Describe() const;
  uint64_t calls() const { return calls_; }  // of the library's product

 private:
  // A product of the library: weights [n, k] in bf16 or else f16.
  using Key = std::tuple<bool, uint32_t, uint32_t>;
  struct Plan {
    uint32_t n = 0;
    uint32_t k = 0;
    bool bf16 = false;
    lt::MatrixLayout weights = nullptr;
    std::array<lt::MatrixLayout, kFastRows / kFastRowStep> x = {};     // by rows / kFastRowStep - 1
    std::array<lt::MatrixLayout, kFastRows / kFastRowStep> sums = {};  // [rows, n], rows of whole 16 bytes
    lt::Algo algo = {};
  };
  FastProducts(const lt::Api& api, cudaStream_t stream) : api_(api), stream_(stream) {}
  absl::Status Open(const std::vector<DenseShape>& shapes, uint32_t max_tokens);
  absl::Status AddPlans(const DenseShape& shape);
  absl::Status AddPlan(bool bf16, uint32_t n, uint32_t k);
  absl::Status ChooseAlgorithm(Plan* plan);
  absl::Status Allocate(uint32_t max_tokens);
  // sums_ = x . weights for `rows` of x, padded to a multiple of kFastRowStep.
  absl::Status Call(const Plan& plan, const void* weights, const uint16_t* x, uint32_t rows);
  absl::Status Expand(const DeviceMatrix& weights, uint32_t first, uint32_t rows, Launcher& launcher);
  absl::Status StageRows(bool bf16, const uint8_t* rounded, const DeviceMatrix& weights, Launcher& launcher);

  // fast_self_test.cc. Errors: FAILED_PRECONDITION with the numbers.
  absl::Status TestPlan(const Plan& plan);

  const lt::Api api_;
  const cudaStream_t stream_;
  lt::Handle handle_ = nullptr;
  lt::MatmulDesc desc_ = nullptr;
  std::vector<DenseShape> shapes_;
  std::map<Key, Plan> plans_;
  uint8_t* memory_ = nullptr;
  uint16_t* weights_ = nullptr;  // a tile, kTileBytes at most
  float* weight_scales_ = nullptr;
  uint16_t* x_ = nullptr;  // [max_tokens, padded columns]
  float* x_scales_ = nullptr;
  float* sums_ = nullptr;
  uint64_t calls_ = 0;

  Rows rows_;
  // The form in which x_ holds the rows.
  struct Staged {
    bool valid = false;
    bool bf16 = false;
    const uint8_t* rounded = nullptr;
    bool operator==(const Staged&) const = default;
  } staged_;
};

}  // namespace sluice::cuda
