// StreamMix and StreamWrite: rows are tiles of one region.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"

namespace sluice::cpu {
namespace {

// Columns of a tile of StreamWrite.
constexpr uint32_t kStreamColumns = 256;

// 1 / rms(x), made as the norm makes it (ARITHMETIC.md 5): the dot product of a row with itself is its lane
// sum.
float InverseRms(const KernelTable& kernels, const float* x, uint32_t cols, float epsilon) {
  float dot = 0;
  float* y = &dot;
  const auto* row = reinterpret_cast<const uint8_t*>(x);
  DotCall call;
  call.w = &row;
  call.x = &x;
  call.y = &y;
  call.rows = 1;
  call.tokens = 1;
  call.cols = cols;
  kernels.dot[static_cast<int>(RowKind::kF32)](call);
  return 1.0f / std::sqrt(dot / static_cast<float>(cols) + epsilon);
}

}  // namespace

void Run(Device& d, const StreamMixCall& call) {
  const uint32_t cols = call.streams * call.hidden;
  const auto exp = [&](float x) { return d.kernels.exp_sum(&x, 0.0f, 1, nullptr); };
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * cols * 3, [&](uint32_t t, uint32_t) {
    const float* x = call.x.Row(t);
    float pre[kMaxStreams];
    MakeStreamFactors(call, call.raw.Row(t), InverseRms(d.kernels, x, cols, call.norm_epsilon), exp, pre,
                      call.iterations > 0 ? call.factors.Row(t) : nullptr);
    float* y = call.y.Row(t);
    std::memset(y, 0, call.hidden * sizeof(float));
    for (uint32_t i = 0; i < call.streams; ++i) {
      d.kernels.scale_add(x + uint64_t{i} * call.hidden, pre[i], 1.0f, call.hidden, y);
    }
  });
}

void Run(Device& d, const StreamWriteCall& call) {
  const uint32_t m = call.streams;
  const uint32_t blocks = (call.hidden + kStreamColumns - 1) / kStreamColumns;
  d.tiles.Run(
      call.tokens * blocks, uint64_t{call.tokens} * call.hidden * m * (m + 1), [&](uint32_t tile, uint32_t) {
        const uint32_t t = tile / blocks;
        const uint32_t first = tile % blocks * kStreamColumns;
        const uint32_t count = std::min(kStreamColumns, call.hidden - first);
        const float* post = call.factors.Row(t);
        // All streams are read before the first is written.
        float sums[kMaxStreams][kStreamColumns];
        for (uint32_t j = 0; j < m; ++j) {
          std::memset(sums[j], 0, count * sizeof(float));
          for (uint32_t i = 0; i < m; ++i) {
            d.kernels.scale_add(call.x.Row(t) + uint64_t{i} * call.hidden + first, post[m + i * m + j], 1.0f,
                                count, sums[j]);
          }
          d.kernels.scale_add(call.y.Row(t) + first, post[j], 1.0f, count, sums[j]);
        }
        for (uint32_t j = 0; j < m; ++j) {
          std::memcpy(call.out.Row(t) + uint64_t{j} * call.hidden + first, sums[j], count * sizeof(float));
        }
      });
}

}  // namespace sluice::cpu
