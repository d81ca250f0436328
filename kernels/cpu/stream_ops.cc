// StreamMix, StreamWrite, StreamMean, StreamAdd and StreamMatch: rows are tiles of one region.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"

namespace sluice::cpu {
namespace {

// Columns of a tile of StreamWrite or StreamMean.
constexpr uint32_t kStreamColumns = 256;

float Dot(const KernelTable& kernels, const float* a, const float* x, uint32_t cols) {
  float dot = 0;
  float* y = &dot;
  const auto* row = reinterpret_cast<const uint8_t*>(a);
  DotCall call;
  call.w = &row;
  call.x = &x;
  call.y = &y;
  call.rows = 1;
  call.tokens = 1;
  call.cols = cols;
  kernels.dot[static_cast<int>(RowKind::kF32)](call);
  return dot;
}

// 1 / rms(x), made as the norm makes it (ARITHMETIC.md 5): the dot product of a row with itself is its lane
// sum.
float InverseRms(const KernelTable& kernels, const float* x, uint32_t cols, float epsilon) {
  return 1.0f / std::sqrt(Dot(kernels, x, x, cols) / static_cast<float>(cols) + epsilon);
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

void Run(Device& d, const StreamMeanCall& call) {
  const float share = 1.0f / static_cast<float>(call.streams);
  const uint32_t blocks = (call.hidden + kStreamColumns - 1) / kStreamColumns;
  d.tiles.Run(call.tokens * blocks, uint64_t{call.tokens} * call.streams * call.hidden * 10,
              [&](uint32_t tile, uint32_t) {
                const uint32_t t = tile / blocks;
                const uint32_t first = tile % blocks * kStreamColumns;
                const uint32_t count = std::min(kStreamColumns, call.hidden - first);
                float* const y = call.y.Row(t) + first;
                std::memset(y, 0, count * sizeof(float));
                for (uint32_t i = 0; i < call.streams; ++i) {
                  const uint64_t column = uint64_t{i} * call.hidden + first;
                  float values[kStreamColumns];
                  std::memcpy(values, call.x.Row(t) + column, count * sizeof(float));
                  d.kernels.sigmoid_mul(call.gate.Row(t) + column, count, values);
                  d.kernels.scale_add(values, 1.0f, 1.0f, count, y);
                }
                d.kernels.decode[static_cast<int>(RowKind::kF32)](reinterpret_cast<const uint8_t*>(y), count,
                                                                  share, y);
              });
}

void Run(Device& d, const StreamAddCall& call) {
  const uint64_t cols = uint64_t{call.streams} * call.hidden;
  d.tiles.Run(call.tokens, call.tokens * cols * 2, [&](uint32_t t, uint32_t) {
    float factors[kMaxStreams];
    d.kernels.sigmoid(call.gate.Row(t), call.streams, factors);
    float* const out = call.out.Row(t);
    if (call.x.base == nullptr) {
      std::memset(out, 0, cols * sizeof(float));
    } else if (call.x.Row(t) != out) {
      std::memmove(out, call.x.Row(t), cols * sizeof(float));
    }
    for (uint32_t i = 0; i < call.streams; ++i) {
      d.kernels.scale_add(call.y.Row(t), call.scale * factors[i], 1.0f, call.hidden,
                          out + uint64_t{i} * call.hidden);
    }
  });
}

void Run(Device& d, const StreamMatchCall& call) {
  const uint64_t cols = uint64_t{call.streams} * call.hidden;
  d.tiles.Run(call.tokens, call.tokens * cols * 2, [&](uint32_t t, uint32_t) {
    for (uint32_t i = 0; i < call.streams; ++i) {
      const uint64_t first = uint64_t{i} * call.hidden;
      const float dot = Dot(d.kernels, call.x.Row(t) + first, call.y.Row(t) + first, call.hidden);
      call.out.Row(t)[i] = SignedRoot(dot * call.scale);
    }
  });
}

}  // namespace sluice::cpu
