#include "tests/cuda_fake/tests/kernels_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "common/base/half.h"
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

constexpr uint32_t kGroup = 64;

// Rows of q4 in device memory of exactly their size.
cuda::DeviceMatrix MatrixQ4(const std::vector<uint8_t>& weights, uint32_t rows, uint32_t cols,
                            uint64_t stride) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4);
  cuda::DeviceMatrix m;
  m.base = ToDevice(weights);
  m.stride = stride;
  m.rows = rows;
  m.cols = cols;
  m.scales = static_cast<uint32_t>(ScaleOffset(d, cols));
  m.zeros = static_cast<uint32_t>(ZeroOffset(d, cols));
  m.group = kGroup;
  m.encoding = Encoding::kQ4;
  m.aligned = 16;
  return m;
}

// x, `tokens` rows of it, to be rounded for such rows.
cuda::PrepareLaunch RoundingOf(const std::vector<float>& x, uint32_t tokens) {
  cuda::PrepareLaunch round;
  round.x = ToDevice(x);
  round.rows = tokens;
  round.cols = static_cast<uint32_t>(x.size() / tokens);
  round.x_stride = round.cols;
  round.group = kGroup;
  round.rounded = NewOnDevice<uint8_t>(tokens * cuda::RoundedStride(round.cols, kGroup));
  return round;
}

// A product of `tokens` rounded rows with one matrix.
cuda::MatMulLaunch ProductOf(const cuda::PrepareLaunch& round, const cuda::DeviceMatrix& m, float* y) {
  cuda::MatMulLaunch product;
  product.tokens = round.rows;
  product.part_count = 1;
  cuda::MatMulLaunchPart& part = product.parts[0];
  part.weights = m;
  part.rounded = round.rounded;
  part.rows = m.rows;
  part.y = y;
  part.y_stride = m.rows;
  return product;
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
  cuda::Launcher launcher;
  if (entries.prepare(launch, launcher) != cudaSuccess) {
    return {};
  }
  return ToHost(y, x.size());
}

std::vector<float> RunGemvQ4(const KernelEntries& entries, const std::vector<float>& x,
                             const std::vector<uint8_t>& weights, uint32_t rows, uint64_t stride) {
  constexpr uint64_t kShared = 48 << 10;
  const auto cols = static_cast<uint32_t>(x.size());
  const cuda::PrepareLaunch round = RoundingOf(x, 1);
  float* const y = NewOnDevice<float>(rows);
  const cuda::MatMulLaunch gemv = ProductOf(round, MatrixQ4(weights, rows, cols, stride), y);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaStream_t first;
  cudaStream_t second;
  cudaEvent_t done;
  EXPECT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
  cuda::Launcher rounds(first);
  cuda::Launcher multiplies(second);
  if (entries.prepare(round, rounds) != cudaSuccess || cudaEventRecord(done, first) != cudaSuccess ||
      cudaStreamWaitEvent(second, done, 0) != cudaSuccess ||
      entries.matmul(gemv, kShared, multiplies) != cudaSuccess ||
      cudaStreamSynchronize(second) != cudaSuccess) {
    return {};
  }
  return ToHost(y, rows);
}

std::vector<float> RunTilesQ4(const KernelEntries& entries, const std::vector<float>& x, uint32_t tokens,
                              const std::vector<uint8_t>& weights, uint32_t rows, uint64_t stride) {
  const cuda::PrepareLaunch round = RoundingOf(x, tokens);
  float* const y = NewOnDevice<float>(uint64_t{tokens} * rows);
  const cuda::MatMulLaunch product = ProductOf(round, MatrixQ4(weights, rows, round.cols, stride), y);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cuda::Launcher launcher;
  if (entries.prepare(round, launcher) != cudaSuccess ||
      entries.tiles(product, product.parts[0], launcher) != cudaSuccess) {
    return {};
  }
  return ToHost(y, uint64_t{tokens} * rows);
}

std::vector<float> RunAttentionF16(const KernelEntries& entries, uint32_t positions) {
  constexpr uint32_t kHeads = 4;
  constexpr uint32_t kDim = 64;
  const uint32_t pages = (positions + cuda::kPagePositions - 1) / cuda::kPagePositions;
  // Only positions that are there hold anything.
  const std::vector<float> values = RandomFloats(uint64_t{2} * positions * kDim, 8);
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), FloatToF16);
  std::vector<uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0);
  cuda::RowPlace place;
  place.pages = ToDevice(order);
  place.position = place.last_visible = positions - 1;
  cuda::AttentionLaunch launch;
  launch.places = ToDevice(std::vector<cuda::RowPlace>{place});
  launch.rows = 1;
  launch.q = ToDevice(RandomFloats(kHeads * kDim, 9));
  launch.q_stride = kHeads * kDim;
  launch.heads = kHeads;
  launch.scale = 0.1f;
  launch.kv.k = reinterpret_cast<uint8_t*>(
      ToDevice(std::vector<uint16_t>(halves.begin(), halves.begin() + positions * kDim)));
  launch.kv.v = reinterpret_cast<uint8_t*>(
      ToDevice(std::vector<uint16_t>(halves.begin() + positions * kDim, halves.end())));
  launch.kv.page_stride = launch.kv.v_page_stride = cuda::kPagePositions * kDim * sizeof(uint16_t);
  launch.kv.kv_heads = 1;
  launch.kv.head_dim = kDim;
  launch.kv.value_dim = launch.kv.v_dim = kDim;
  launch.splits = (positions + cuda::kSpanPositions - 1) / cuda::kSpanPositions;
  launch.partial = NewOnDevice<float>(uint64_t{kHeads} * launch.splits * (kDim + 2));
  launch.out = NewOnDevice<float>(kHeads * kDim);
  launch.out_stride = kHeads * kDim;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cuda::Launcher launcher;
  if (entries.attention(launch, launcher) != cudaSuccess) {
    return {};
  }
  return ToHost(launch.out, kHeads * kDim);
}

std::vector<float> RunExpertQ4(const KernelEntries& entries, const std::vector<float>& x, uint32_t width) {
  const auto cols = static_cast<uint32_t>(x.size());
  const auto matrix = [&](uint64_t seed) {
    uint64_t stride = 0;
    const std::vector<uint8_t> rows = RandomQ4Rows(width, cols, &stride, seed);
    return MatrixQ4(rows, width, cols, stride);
  };
  const cuda::PrepareLaunch round = RoundingOf(x, 1);
  cuda::DeviceExpert expert;
  expert.up = matrix(11);
  expert.gate = matrix(12);
  expert.down = matrix(13);
  expert.neuron_end = width;
  expert.lead = cuda::Lead::kUp;
  expert.threshold = 1;
  expert.up_rounded = round.rounded;
  expert.gate_rounded = round.rounded;
  cuda::ExpertsLaunch launch;
  launch.experts = ToDevice(std::vector<cuda::DeviceExpert>{expert});
  launch.expert_count = 1;
  launch.pairs = ToDevice(std::vector<cuda::ExpertPair>(1));
  launch.pair_count = 1;
  launch.block_count = cuda::BlocksOf(width);
  launch.block_bytes = cuda::BlockBytes(cuda::GroupsOf(cols, kGroup));
  launch.blocks = NewOnDevice<uint8_t>(launch.block_count * launch.block_bytes);
  launch.max_neurons = width;
  cuda::WidenShared(expert.up, expert.gate, false, &launch.shared);
  launch.max_tiles = cuda::DownTiles(expert.down);
  launch.down_warps = cuda::DownWarps(expert.down, width);
  launch.x = round.x;
  launch.x_stride = cols;
  launch.y = NewOnDevice<float>(cols);
  launch.y_stride = cols;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cuda::Launcher launcher;
  if (entries.prepare(round, launcher) != cudaSuccess ||
      entries.coefficients(launch, launcher) != cudaSuccess ||
      entries.down(launch, launcher) != cudaSuccess) {
    return {};
  }
  return ToHost(launch.y, cols);
}

std::vector<uint8_t> RandomQ4Rows(uint32_t rows, uint32_t cols, uint64_t* stride, uint64_t seed) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ4);
  *stride = RoundStride(RowBytes(d, cols));
  std::mt19937_64 random(seed);
  std::vector<uint8_t> all(rows * *stride);
  for (uint32_t r = 0; r < rows; ++r) {
    uint8_t* const row = &all[r * *stride];
    for (uint32_t k = 0; k < cols; ++k) {
      const CodeLocation place = LocateCode(4, k);
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
