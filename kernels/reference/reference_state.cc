// ARITHMETIC.md section 10.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/scalar_math.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {
namespace {

// `kernel_size` rows of `cols` values, oldest first, of which the last is this token's: the sum for column c.
float Convolve(const std::vector<std::vector<float>>& rows, const InRows& weights, float bias, uint32_t c) {
  float sum = bias;
  for (size_t j = 0; j < rows.size(); ++j) {
    sum = std::fma(rows[j][c], weights.Row(j)[c], sum);
  }
  return sum + 0.0f;
}

// The rows of a convolution before a sequence's first: `count` rows of `cols` values.
std::vector<std::vector<float>> RowsBefore(const float* slot, uint32_t count, uint32_t cols) {
  std::vector<std::vector<float>> rows(count, std::vector<float>(cols, 0.0f));
  for (uint32_t j = 0; j < count && slot != nullptr; ++j) {
    rows[j].assign(slot + uint64_t{j} * cols, slot + uint64_t{j + 1} * cols);
  }
  return rows;
}

void StoreRows(const std::vector<std::vector<float>>& rows, float* slot) {
  for (const std::vector<float>& row : rows) {
    slot = std::copy(row.begin(), row.end(), slot);
  }
}

// One token of one head: from the convolved row to the head's output before the norm.
void StepHead(const MambaCall& call, uint32_t t, uint32_t head, const std::vector<float>& xbc, float* state) {
  const MambaConfig& m = call.shape;
  const uint32_t group = head / (m.heads / m.groups);
  const float x = call.dt.Row(t)[head] + call.dt_bias[head];
  float step = std::max(SoftplusOf(x, Exp(x)), m.min_step);
  if (m.max_step > 0) {
    step = std::min(step, m.max_step);
  }
  const float decay = Exp(-(step * Exp(call.a_log[head])));
  const float* b = xbc.data() + call.ColumnB(group);
  const float* c = xbc.data() + call.ColumnC(group);
  for (uint32_t p = 0; p < m.head_dim; ++p) {
    const float value = xbc[uint64_t{head} * m.head_dim + p];
    const float input = step * value;
    float y = 0;
    for (uint32_t n = 0; n < m.state; ++n) {
      float& cell = state[uint64_t{n} * m.head_dim + p];
      cell = std::fma(b[n], input, cell * decay);
      y = std::fma(cell, c[n], y);
    }
    const uint64_t place = uint64_t{head} * m.head_dim + p;
    call.out.Row(t)[place] = std::fma(call.skip[head], value, y + 0.0f) * Silu(call.z.Row(t)[place]);
  }
}

void NormGroups(const MambaCall& call, float* row) {
  const uint32_t width = call.Values() / call.shape.groups;
  for (uint32_t group = 0; group < call.shape.groups; ++group) {
    CallNorm norm = call.norm;
    norm.weight += uint64_t{group} * width;
    NormRow(norm, row + uint64_t{group} * width, width, row + uint64_t{group} * width);
  }
}

}  // namespace

void Run(Device&, const MambaCall& call) {
  const MambaConfig& m = call.shape;
  const uint32_t cols = call.ConvCols();
  for (size_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    const float* old_slot = call.states.From(i);
    std::vector<std::vector<float>> rows = RowsBefore(old_slot, m.conv_kernel - 1, cols);
    std::vector<float> state(m.heads * call.HeadFloats(), 0.0f);
    if (old_slot != nullptr) {
      std::copy_n(old_slot + call.ConvFloats(), state.size(), state.begin());
    }
    for (uint32_t row = 0; row < sequence.rows; ++row) {
      const uint32_t t = sequence.first_row + row;
      rows.emplace_back(call.xbc.Row(t), call.xbc.Row(t) + cols);
      std::vector<float> convolved;
      for (uint32_t c = 0; c < cols; ++c) {
        convolved.push_back(Silu(Convolve(rows, call.conv, call.conv_bias[c], c)));
      }
      for (uint32_t head = 0; head < m.heads; ++head) {
        StepHead(call, t, head, convolved, state.data() + head * call.HeadFloats());
      }
      NormGroups(call, call.out.Row(t));
      rows.erase(rows.begin());
    }
    StoreRows(rows, call.states.To(i));
    std::copy(state.begin(), state.end(), call.states.To(i) + call.ConvFloats());
  }
}

void Run(Device&, const ShortConvCall& call) {
  const uint32_t width = call.shape.width;
  for (size_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    std::vector<std::vector<float>> rows = RowsBefore(call.states.From(i), call.shape.kernel - 1, width);
    for (uint32_t row = 0; row < sequence.rows; ++row) {
      const uint32_t t = sequence.first_row + row;
      const float* bcx = call.bcx.Row(t);
      rows.emplace_back(width);
      for (uint32_t c = 0; c < width; ++c) {
        rows.back()[c] = bcx[c] * bcx[2 * uint64_t{width} + c];
      }
      for (uint32_t c = 0; c < width; ++c) {
        call.out.Row(t)[c] = bcx[uint64_t{width} + c] * Convolve(rows, call.conv, 0.0f, c);
      }
      rows.erase(rows.begin());
    }
    StoreRows(rows, call.states.To(i));
  }
}

}  // namespace sluice::reference
