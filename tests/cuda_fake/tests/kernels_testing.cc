#include "tests/cuda_fake/tests/kernels_testing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/half.h"
#include "pack/row_layout.h"

namespace sluice::cuda_fake {
namespace {

// Device memory of exactly the values' size, so that an access one beyond is outside.
template <typename T>
T* ToDevice(const std::vector<T>& values) {
  T* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&pointer), values.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return pointer;
}

template <typename T>
T* NewOnDevice(size_t count) {
  T* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&pointer), count * sizeof(T)), cudaSuccess);
  return pointer;
}

std::vector<float> ToHost(const float* pointer, size_t count) {
  std::vector<float> values(count);
  if (cudaMemcpy(values.data(), pointer, count * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess) {
    return {};
  }
  return values;
}

}  // namespace

std::vector<float> RunRmsNorm(const KernelEntries& entries, const std::vector<float>& x,
                              const std::vector<float>& weight, uint32_t rows, float epsilon) {
  cuda::PrepareLaunch launch;
  launch.x = ToDevice(x);
  launch.rows = rows;
  launch.cols = static_cast<uint32_t>(x.size() / rows);
  launch.x_stride = launch.cols;
  launch.norm.on = true;
  launch.norm.weight = weight.empty() ? nullptr : ToDevice(weight);
  launch.norm.epsilon = epsilon;
  float* const y = NewOnDevice<float>(x.size());
  launch.y = y;
  launch.y_stride = launch.cols;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  // A kernel that faults fails the calls behind it, or its own; the report says why.
  if (entries.prepare(launch, nullptr) != cudaSuccess) {
    return {};
  }
  return ToHost(y, x.size());
}

std::vector<float> RunGemvQ4(const KernelEntries& entries, const std::vector<float>& x,
                             const std::vector<uint8_t>& weights, uint32_t rows, uint64_t stride) {
  constexpr uint32_t kGroup = 64;
  constexpr uint64_t kShared = 48 << 10;
  const auto cols = static_cast<uint32_t>(x.size());
  cuda::PrepareLaunch round;
  round.x = ToDevice(x);
  round.rows = 1;
  round.cols = cols;
  round.group = kGroup;
  round.rounded = NewOnDevice<uint8_t>(cuda::RoundedStride(cols, kGroup));
  cuda::MatMulLaunch gemv;
  gemv.tokens = 1;
  gemv.part_count = 1;
  cuda::MatMulLaunchPart& part = gemv.parts[0];
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4);
  part.weights.base = ToDevice(weights);
  part.weights.stride = stride;
  part.weights.rows = rows;
  part.weights.cols = cols;
  part.weights.scales = static_cast<uint32_t>(ScaleOffset(d, cols));
  part.weights.zeros = static_cast<uint32_t>(ZeroOffset(d, cols));
  part.weights.group = kGroup;
  part.weights.encoding = Encoding::kQ4;
  part.weights.meta_bits = 16;
  part.weights.aligned = 16;
  part.rounded = round.rounded;
  part.rows = rows;
  float* const y = NewOnDevice<float>(rows);
  part.y = y;
  part.y_stride = rows;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaStream_t first;
  cudaStream_t second;
  cudaEvent_t done;
  EXPECT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
  if (entries.prepare(round, first) != cudaSuccess || cudaEventRecord(done, first) != cudaSuccess ||
      cudaStreamWaitEvent(second, done, 0) != cudaSuccess ||
      entries.matmul(gemv, kShared, second) != cudaSuccess || cudaStreamSynchronize(second) != cudaSuccess) {
    return {};
  }
  return ToHost(y, rows);
}

std::vector<uint8_t> RandomQ4Rows(uint32_t rows, uint32_t cols, uint64_t* stride, uint64_t seed) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4);
  *stride = RoundStride(RowBytes(d, cols));
  std::mt19937_64 random(seed);
  std::vector<uint8_t> all(rows * *stride);
  for (uint32_t r = 0; r < rows; ++r) {
    uint8_t* const row = &all[r * *stride];
    for (uint32_t k = 0; k < cols; ++k) {
      const CodePlace place = PlaceOfCode(4, k);
      const uint32_t bits = static_cast<uint32_t>(random() % 16) << place.shift;
      row[place.byte_offset] |= static_cast<uint8_t>(bits);
      row[place.byte_offset + 1] |= static_cast<uint8_t>(bits >> 8);
    }
    for (uint64_t g = 0; g < GroupsPerRow(d, cols); ++g) {
      const uint16_t scale = FloatToF16(0.01f + static_cast<float>(random() % 1000) / 50000.0f);
      const uint16_t zero = FloatToF16(7.0f + static_cast<float>(random() % 64) / 32.0f);
      std::memcpy(row + ScaleOffset(d, cols) + 2 * g, &scale, 2);
      std::memcpy(row + ZeroOffset(d, cols) + 2 * g, &zero, 2);
    }
  }
  return all;
}

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int64_t>(random() % 200001) - 100000) / 30000.0f;
  }
  return values;
}

}  // namespace sluice::cuda_fake
