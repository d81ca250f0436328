#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/row_kernels.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;

dim3 GridOf(uint32_t cols, uint32_t rows) { return dim3(rows, (cols + kThreads - 1) / kThreads); }

__device__ inline unsigned Column() { return blockIdx.y * kThreads + threadIdx.x; }

// Code `column` of a plane of kBits bits.
template <int kBits>
__device__ inline unsigned PlaneCode(const uint8_t* plane, unsigned column) {
  constexpr unsigned kColumns = 256 / kBits;
  const unsigned within = column % kColumns;
  const uint16_t word = *reinterpret_cast<const uint16_t*>(plane + column / kColumns * 32 + within % 16 * 2);
  return word >> (within / 16 * kBits) & ((1u << kBits) - 1);
}

// The upper bits of a code in the second plane of one of five or six bits.
template <Encoding kEncoding>
__device__ inline unsigned HighCode(const uint8_t* plane, unsigned column) {
  const unsigned block = column / 64;
  const uint16_t word =
      *reinterpret_cast<const uint16_t*>(plane + HighBlock<kEncoding>(block) + column % 16 * 2);
  return HighOf<kEncoding>(HighBits<kEncoding>(word, 0, block), column % 64 / 16) & 0xffu;
}

__device__ inline float CodeAt(const DeviceMatrix& m, const uint8_t* row, unsigned column) {
  switch (m.encoding) {
    case Encoding::kQ8:
      return static_cast<float>(PlaneCode<8>(row, column));
    case Encoding::kQ4:
      return static_cast<float>(PlaneCode<4>(row, column));
    case Encoding::kQ3:
      return static_cast<float>(PlaneCode<2>(row, column) + 4 * PlaneCode<1>(row + m.third_bits, column));
    case Encoding::kQ2:
      return static_cast<float>(PlaneCode<2>(row, column));
    case blocks::kQ5_0:
      return static_cast<float>(PlaneCode<4>(row, column) +
                                HighCode<blocks::kQ5_0>(row + m.third_bits, column));
    case blocks::kQ6_K:
      return static_cast<float>(PlaneCode<4>(row, column) +
                                HighCode<blocks::kQ6_K>(row + m.third_bits, column));
    case blocks::kIq4Nl:
      return static_cast<float>(Iq4Bytes(PlaneCode<4>(row, column)) & 0xffu);
    default:
      return static_cast<float>(static_cast<signed char>(Mxfp4Bytes(PlaneCode<4>(row, column)) & 0xffu));
  }
}

// A thread a value: 2 bytes of codes (for 16 neighbours, 32 bytes) or the value itself. Bytes: a row and its
// values. Bound: latency.
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedLaunch launch) {
  const unsigned k = Column();
  if (k >= launch.table.cols) {
    return;
  }
  const DeviceMatrix& m = launch.table;
  const uint8_t* const row = m.base + static_cast<uint64_t>(launch.ids[blockIdx.x]) * m.stride;
  float value = 0;
  switch (m.encoding) {
    case Encoding::kBf16:
      value = LoadOne<Encoding::kBf16>(row, m.aligned, k);
      break;
    case Encoding::kF16:
      value = LoadOne<Encoding::kF16>(row, m.aligned, k);
      break;
    case Encoding::kF32:
      value = LoadOne<Encoding::kF32>(row, m.aligned, k);
      break;
    default: {
      const GroupNumbers numbers = NumbersOf<Encoding::kInvalid>(m, row, k / m.group);
      const float code = CodeAt(m, row, k);
      value = HasMins<Encoding::kInvalid>(m) ? numbers.scale * code - numbers.second
                                             : (code - numbers.second) * numbers.scale;
    }
  }
  launch.y[blockIdx.x * launch.y_stride + k] = launch.scale * value;
}

// A thread a value, 128 neighbouring bytes a warp. Bytes: at most 8 read and 4 written a value. Bound:
// memory.
__global__ void __launch_bounds__(kThreads) OutputGateKernel(OutputGateLaunch launch) {
  const unsigned k = Column();
  if (k < launch.cols) {
    float* const x = launch.x + blockIdx.x * launch.x_stride + k;
    const float gate = launch.gate[blockIdx.x * launch.gate_stride + k / launch.width];
    *x = *x * (launch.softplus ? Softplus(gate) : Sigmoid(gate));
  }
}

// As above: 4 bytes read and 4 written a value (section 4, soft cap).
__global__ void __launch_bounds__(kThreads) SoftCapKernel(SoftCapLaunch launch) {
  const unsigned k = Column();
  if (k < launch.cols) {
    float* const x = launch.x + blockIdx.x * launch.x_stride + k;
    *x = launch.cap * fmaf(2.0f, Sigmoid(*x * (2.0f / launch.cap)), -1.0f);
  }
}

// As above: 4 bytes read and 4 written a value.
__global__ void __launch_bounds__(kThreads) ScaleRowsKernel(ScaleRowsLaunch launch) {
  const unsigned k = Column();
  if (k < launch.cols) {
    const unsigned row = blockIdx.x;
    launch.y[row * launch.y_stride + k] = (launch.weights == nullptr ? 1.0f : launch.weights[row]) *
                                          launch.x[row / launch.ranks * launch.x_stride + k];
  }
}

// A thread a value of the sum, ranks ascending. Bytes: 4 a rank, 4 of the residual, 4 written. Bound: memory.
__global__ void __launch_bounds__(kThreads) CombineKernel(CombineLaunch launch) {
  const unsigned k = Column();
  if (k >= launch.cols) {
    return;
  }
  const unsigned t = blockIdx.x;
  float sum = 0;
  for (unsigned r = 0; r < launch.ranks; ++r) {
    const uint64_t slot = uint64_t{t} * launch.ranks + r;
    const float weight = launch.weights == nullptr ? 1.0f : launch.weights[slot];
    if (weight != 0) {
      sum = fmaf(weight, launch.y[slot * launch.y_stride + k], sum);
    }
  }
  float out = launch.scale * (sum + 0.0f);
  if (launch.residual != nullptr) {
    out = launch.residual[t * launch.residual_stride + k] + out;
  }
  launch.out[t * launch.out_stride + k] = launch.gain == nullptr ? out : *launch.gain * out;
}

}  // namespace

cudaError_t EnqueueEmbed(const EmbedLaunch& launch, Launcher& launcher) {
  return launcher.Launch(EmbedKernel, GridOf(launch.table.cols, launch.tokens), kThreads, 0, launch);
}

cudaError_t EnqueueOutputGate(const OutputGateLaunch& launch, Launcher& launcher) {
  return launcher.Launch(OutputGateKernel, GridOf(launch.cols, launch.tokens), kThreads, 0, launch);
}

cudaError_t EnqueueSoftCap(const SoftCapLaunch& launch, Launcher& launcher) {
  return launcher.Launch(SoftCapKernel, GridOf(launch.cols, launch.tokens), kThreads, 0, launch);
}

cudaError_t EnqueueScaleRows(const ScaleRowsLaunch& launch, Launcher& launcher) {
  return launcher.Launch(ScaleRowsKernel, GridOf(launch.cols, launch.rows), kThreads, 0, launch);
}

cudaError_t EnqueueCombine(const CombineLaunch& launch, Launcher& launcher) {
  return launcher.Launch(CombineKernel, GridOf(launch.cols, launch.tokens), kThreads, 0, launch);
}

}  // namespace sluice::cuda
