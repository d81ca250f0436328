// Memory shared by operations, since only one runs at a time: rows of the call, partial sums, and each
// worker's memory for its tile. Memory for one operation only belongs to that operation.
//
// Thread safety: thread-compatible; while tiles run, a worker uses its own WorkerSpace only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/host_memory.h"
#include "kernels/resolver.h"

namespace sluice::cpu {

// Memory that a backend reserves at creation and keeps while it lives, so that no operation allocates.

class Scratch {
 public:
  // Returns zeroed memory for `count` values (for one if count is 0), on its own pages. Untouched pages cost
  // nothing. RESOURCE_EXHAUSTED naming `what` and the bytes.
  template <class T>
  absl::Status Reserve(uint64_t count, const char* what, T** out) {
    static_assert(std::is_trivially_copyable_v<T>, "nothing here is constructed or destroyed");
    ASSIGN_OR_RETURN(MappedArray array, MappedArray::Create(std::max<uint64_t>(count, 1) * sizeof(T), what));
    *out = reinterpret_cast<T*>(array.data());
    arrays_.push_back(std::move(array));
    return absl::OkStatus();
  }

 private:
  std::vector<MappedArray> arrays_;
};

inline constexpr uint32_t kConvColumns = 128;  // columns of a tile of ShortConv

// The memory of one worker.
struct alignas(64) WorkerSpace {
  float* gemm = nullptr;           // GemmScratchFloats
  float* down = nullptr;           // DownScratchFloats
  uint32_t* quant_down = nullptr;  // QuantDownWords
  float* quant_gemm = nullptr;     // QuantGemmFloats and FileRowFloats
  int8_t* quant_packed = nullptr;  // QuantPackedBytes of max_tokens
  // Three times [max_tokens] rows of 64 floats: outputs of a tile, one row for each token.
  float** rows[3] = {};
  const float** inputs = nullptr;  // [max_tokens]: rows of x
  QuantRow* quant = nullptr;       // [max_tokens]: the inputs, rounded
  float** outputs = nullptr;       // [max_tokens]: addresses of a tile's outputs
  // For the current operation: [4][experts] (Router), [heads][head_dim] (a row of K or V), [kMaxConvKernel +
  // 2][3][head_dim] (GatedDelta, Mamba) or [kMaxConvKernel][kConvColumns] (ShortConv).
  float* any = nullptr;
};

struct Workspace {
  // Partial sums of fused experts and split attention: 64 MiB, touched only as far as used.
  static constexpr uint64_t kPartialFloats = uint64_t{16} << 20;

  // Errors: as Scratch.
  absl::Status Reserve(const BackendLimits& limits, uint32_t workers, Scratch* scratch);

  // A row of the weights, or of zeros where it is absent.
  const uint8_t* RowOrZero(const CallWeights& weights, uint32_t row) const {
    const uint8_t* place = weights.Row(row);
    return place != nullptr ? place : zero_row;
  }
  const float* zeros() const { return reinterpret_cast<const float*>(zero_row); }

  uint32_t cols = 0;               // the longest row of activations
  uint64_t x_stride = 0;           // floats from row to row of `normed`, and of sums as long as a row
  float* normed = nullptr;         // [max_tokens][x_stride]
  const float** x_rows = nullptr;  // [max_tokens]: rows of the current call
  uint32_t* all_tokens = nullptr;  // 0, 1, ... max_tokens - 1
  uint64_t packed_rows =
      0;                    // rows in `packed`: all of a call (experts: of all slots, each in its own panels)
  float* packed = nullptr;  // [packed_rows][x_stride]
  float* partials = nullptr;          // [kPartialFloats]
  const uint8_t* zero_row = nullptr;  // zeros as long as any row in any encoding
  std::vector<WorkerSpace> workers;
};

}  // namespace sluice::cpu
