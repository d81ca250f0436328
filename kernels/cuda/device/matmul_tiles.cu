#include <algorithm>

#include "kernels/cuda/device/matmul.cuh"
#include "kernels/cuda/device/tiles.cuh"

namespace sluice::cuda {
namespace {

using namespace tiles;

constexpr uint32_t kFewTokens = 8;  // that the kernel of matmul.cu does in two turns
constexpr uint32_t kMaxOfAGroup = 128;

// A block has 64 rows and 32 tokens: tiles.cuh says who computes what, and how wide it loads. Bytes: a row's
// codes, scales and zeros once for 32 tokens; x once for 64 rows, from the cache. Bound: instructions, about
// a third of them the groups' terms.
// (nvcc writes no stub for a kernel of an enum's value without a name: it is named by number.)
template <unsigned kNumber>
__global__ void __launch_bounds__(kThreads) MatMulTilesKernel(const __grid_constant__ MatMulLaunch launch,
                                                              const __grid_constant__ MatMulLaunchPart part) {
  extern __shared__ int4 shared[];
  const DeviceMatrix& m = part.weights;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned first_row = blockIdx.x * kRows + warp % kRowWarps * kWarpRows + lane / 4;
  const unsigned first_token = blockIdx.y * kTokens;
  const uint64_t row_bytes = RoundedStride(m.cols, m.group);
  const TokenRows x = {part.rounded + (uint64_t{first_token} * launch.heads + blockIdx.z) * row_bytes,
                       row_bytes * launch.heads, nullptr, launch.tokens - 1 - first_token};
  WarpTile tile;
  tile.rows[0] = RowOf(m, blockIdx.z * part.rows + min(first_row, part.rows - 1));
  tile.rows[1] = RowOf(m, blockIdx.z * part.rows + min(first_row + 8, part.rows - 1));
  tile.first_token = warp / kRowWarps * kWarpTokens;
  float dots[2][4];
  TileDots<Encoding{kNumber}>(m, tile, x, shared, dots);
#pragma unroll
  for (unsigned n = 0; n < 2; ++n) {
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned row = first_row + r / 2 * 8;
      const unsigned token = first_token + tile.first_token + 8 * n + lane % 4 * 2 + r % 2;
      if (row < part.rows && token < launch.tokens) {
        WriteProduct(launch, part, token, row, dots[n][r]);
      }
    }
  }
}

template <Encoding kEncoding>
cudaError_t Enqueue(const MatMulLaunch& launch, const MatMulLaunchPart& part, Launcher& launcher) {
  static_assert(ChunkBytes(kMaxOfAGroup) <= kDefaultShared);
  const dim3 grid((part.rows + kRows - 1) / kRows, (launch.tokens + kTokens - 1) / kTokens, launch.heads);
  return launcher.Launch(MatMulTilesKernel<static_cast<unsigned>(kEncoding)>, grid, kThreads,
                         ChunkBytes(part.weights.group), launch, part);
}

}  // namespace

bool TakesTiles(const MatMulLaunch& launch, const MatMulLaunchPart& part) {
  return launch.tokens > kFewTokens && part.rounded != nullptr && part.weights.group % 32 == 0;
}

cudaError_t EnqueueMatMulTiles(const MatMulLaunch& launch, const MatMulLaunchPart& part, Launcher& launcher) {
  if (part.weights.encoding == blocks::kQ5_0) {
    return Enqueue<blocks::kQ5_0>(launch, part, launcher);
  }
  if (part.weights.encoding == blocks::kIq4Nl) {
    return Enqueue<blocks::kIq4Nl>(launch, part, launcher);
  }
  switch (part.weights.encoding) {
    case Encoding::kQ8:
      return Enqueue<Encoding::kQ8>(launch, part, launcher);
    case Encoding::kQ4:
      return Enqueue<Encoding::kQ4>(launch, part, launcher);
    case Encoding::kQ3:
      return Enqueue<Encoding::kQ3>(launch, part, launcher);
    case Encoding::kQ2:
      return Enqueue<Encoding::kQ2>(launch, part, launcher);
    default:
      return Enqueue<Encoding::kMxfp4>(launch, part, launcher);
  }
}

}  // namespace sluice::cuda
