#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/calls/places.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/scratch.h"

namespace sluice::cpu {

inline constexpr uint32_t kConvColumns = 128;  // columns of a tile of ShortConv

// The memory of one worker.
struct alignas(64) WorkerSpace {
  float* gemm = nullptr;           // GemmScratchFloats
  float* down = nullptr;           // DownScratchFloats
  uint32_t* quant_down = nullptr;  // QuantDownWords
  float* quant_gemm = nullptr;     // QuantGemmFloats
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
