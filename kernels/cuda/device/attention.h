// Launches of attention: rope, norms and the writing of K and V into the cache, and attention over the pages
// of sequences (ARITHMETIC.md section 6).
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/cuda/device/launch.h"

namespace sluice::cuda {

enum class KvKind : uint8_t { kF32 = 0, kF16 = 1, kQ8 = 2 };
inline constexpr uint32_t ValueBytes(KvKind kind) {
  return kind == KvKind::kF32 ? 4 : kind == KvKind::kF16 ? 2 : 1;
}
inline constexpr uint32_t kPagePositions = 32;
inline constexpr uint32_t kSpanPositions = 256;

// One row of a batch: where it stands in its sequence, and that sequence's pages.
struct RowPlace {
  const uint32_t* pages = nullptr;  // device
  uint32_t row = 0;                 // of q, k, v and out
  uint32_t position = 0;
  // Attention only, by positions or by the keys of a list (sparse.h).
  uint32_t first_visible = 0;
  uint32_t last_visible = 0;
  bool operator==(const RowPlace& other) const = default;
};

struct DeviceKv {
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
  uint64_t page_stride = 0;
  uint64_t v_page_stride = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;
  uint32_t v_dim = 0;  // of V's rows in its cache: value_dim, or head_dim where values lie within K rows
  KvKind kind = KvKind::kF16;
  bool operator==(const DeviceKv& other) const = default;
};

// The factor of q at a position (ops.h). Scale 0: no factor.
struct DeviceTemperature {
  float scale = 0;
  uint32_t floor = 0;
  uint32_t offset = 0;
  bool operator==(const DeviceTemperature& other) const = default;
};

struct KvWriteLaunch {
  const RowPlace* places = nullptr;  // [rows], device
  uint32_t rows = 0;
  float* q = nullptr;
  uint64_t q_stride = 0;
  const float* k = nullptr;
  uint64_t k_stride = 0;
  const float* v = nullptr;  // nullptr: keys alone
  uint64_t v_stride = 0;
  uint32_t heads = 0;
  QkNorm qk_norm = QkNorm::kNone;
  const float* q_weight = nullptr;  // nullptr: 1
  const float* k_weight = nullptr;
  float q_epsilon = 0;
  float k_epsilon = 0;
  bool value_norm = false;
  float clip = 0;
  DeviceTemperature temperature;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  uint32_t rope_offset = 0;  // first rotated value of a head
  bool rope_interleaved = false;
  DeviceKv kv;
  bool operator==(const KvWriteLaunch& other) const = default;
};
cudaError_t EnqueueKvWrite(const KvWriteLaunch& launch, Launcher& launcher);

struct LatentKvWriteLaunch {
  const RowPlace* places = nullptr;
  uint32_t rows = 0;
  const float* q = nullptr;
  uint64_t q_stride = 0;
  const float* latent = nullptr;
  uint64_t latent_stride = 0;
  float* q_out = nullptr;  // the rotated part is written, with a temperature all of it
  uint64_t q_out_stride = 0;
  uint32_t heads = 0;
  uint32_t nope_dim = 0;
  uint32_t kv_rank = 0;
  bool normed = false;
  const float* weight = nullptr;
  float epsilon = 0;
  DeviceTemperature temperature;
  const float* rope_table = nullptr;
  uint32_t rope_dims = 0;
  bool rope_interleaved = false;
  DeviceKv kv;
  bool operator==(const LatentKvWriteLaunch& other) const = default;
};
cudaError_t EnqueueLatentKvWrite(const LatentKvWriteLaunch& launch, Launcher& launcher);

struct AttentionLaunch {
  const RowPlace* places = nullptr;  // [rows], device
  uint32_t rows = 0;
  const float* q = nullptr;
  uint64_t q_stride = 0;
  uint32_t heads = 0;
  float scale = 0;
  const float* sinks = nullptr;
  DeviceKv kv;
  float* out = nullptr;
  uint64_t out_stride = 0;
  // Spans of a row that blocks of their own compute, the most that a row has; 1: a block computes all of a
  // row's spans one after another and nothing is left to combine. Above 1: float [rows][heads][splits]
  // [value_dim + 2].
  uint32_t splits = 1;
  float* partial = nullptr;
  bool operator==(const AttentionLaunch& other) const = default;
};
// One launch with splits 1, two above. cudaErrorInvalidValue for values of an odd number
// or above 512.
cudaError_t EnqueueAttention(const AttentionLaunch& launch, Launcher& launcher);
// Combines the partial sums of launch.splits spans.
cudaError_t EnqueueCombineSpans(const AttentionLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
