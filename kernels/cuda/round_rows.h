// Activation rows rounded to int8 (kept as int16) by groups of 64, as quantized weight rows are multiplied
// with (ARITHMETIC.md section 2 (b)): once for all weight rows that share them.
//
// Layout of the codes: a group is 128 bytes, eight pieces of 16. Piece 4 * h + k, h < 2, k < 4, goes with the
// 4 bytes at 16 * h + 4 * k of a weight row's 32-byte block of 4-bit codes: with a = 8 * h + 2 * k, codes {a,
// a + 32, a + 1, a + 33, a + 16, a + 48, a + 17, a + 49}, so that two multiply-add pairs fit the bytes' lower
// nibbles and two the upper ones. Pieces of the same k lie together: [k][group][h], and lanes that read
// neighbouring pieces meet no bank twice.
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::cuda {

inline constexpr uint32_t kRoundGroup = 64;

// Of one row of `groups` groups: codes int16 [64 * groups], then scales float [groups], then sums int32
// [groups].
inline constexpr uint64_t RoundedRowBytes(uint32_t groups) {
  return uint64_t{groups} * (2 * kRoundGroup + 8);
}

struct RoundRowsLaunch {
  const float* x = nullptr;    // [rows, cols], device
  unsigned char* y = nullptr;  // [rows][RoundedRowBytes()], device, aligned to 16
  uint32_t rows = 0;
  uint32_t cols = 0;  // the last group may be short: its codes beyond are 0
};

// cudaErrorInvalidValue for no columns; nothing is enqueued then.
cudaError_t EnqueueRoundRows(const RoundRowsLaunch& launch, cudaStream_t stream);

}  // namespace sluice::cuda
