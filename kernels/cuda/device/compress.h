// Launches around compressed entries (ARITHMETIC.md section 11): their making, and the rotation of heads.
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/sparse.h"

namespace sluice::cuda {

// The rotation of some values of a head (ops.h: RopeHeadsArgs).
struct DeviceRope {
  const float* table = nullptr;
  uint32_t dims = 0;
  uint32_t offset = 0;
  bool interleaved = false;
  bool operator==(const DeviceRope& other) const = default;
};

struct RopeHeadsLaunch {
  const RowPlace* places = nullptr;  // [rows], device; without pages
  uint32_t rows = 0;
  float* x = nullptr;
  uint64_t x_stride = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  DeviceRope rope;
  bool back = false;
  bool operator==(const RopeHeadsLaunch& other) const = default;
};
cudaError_t EnqueueRopeHeads(const RopeHeadsLaunch& launch, Launcher& launcher);

struct CompressSequence {
  const uint32_t* pages = nullptr;  // device
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t first_position = 0;
  const float* from = nullptr;  // the state before the first row; not read by a sequence that begins
  float* to = nullptr;          // the state after the last
  bool operator==(const CompressSequence& other) const = default;
};

struct CompressLaunch {
  const CompressSequence* sequences = nullptr;  // [count], device
  uint32_t count = 0;
  uint32_t most_entries = 0;  // upper bound of those that a sequence completes
  const float* values = nullptr;
  uint64_t values_stride = 0;
  const float* gates = nullptr;  // nullptr: entries are means
  uint64_t gates_stride = 0;
  const float* bias = nullptr;
  uint64_t bias_stride = 0;
  bool overlap = false;
  const float* norm_weight = nullptr;  // nullptr: no norm
  float norm_epsilon = 0;
  DeviceRope rope;
  DeviceEntries entries;
  constexpr uint32_t Width() const { return entries.head_dim * (overlap ? 2 : 1); }
  // Rows that a state holds, and floats of one.
  constexpr uint32_t Kept() const { return entries.rate * (overlap ? 2 : 1); }
  constexpr uint32_t KeptFloats() const { return Width() * (gates == nullptr ? 1 : 2); }
  bool operator==(const CompressLaunch& other) const = default;
};
cudaError_t EnqueueCompress(const CompressLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
