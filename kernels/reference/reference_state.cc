// ARITHMETIC.md section 9.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"
#include "kernels/scalar_math.h"

namespace sluice::reference {
namespace {

float Silu(float x) { return x / (1.0f + Exp(-x)); }

// x / |x|.
void L2Norm(std::vector<float>& x) {
  LaneSum sum;
  for (size_t i = 0; i < x.size(); ++i) {
    sum.AddProduct(i, x[i], x[i]);
  }
  const float r = 1.0f / std::sqrt(sum.Total() + 1e-6f);
  for (float& value : x) {
    value = value * r;
  }
}

// The state of one sequence while its rows are computed.
struct State {
  std::vector<float> inputs;  // the convolution's last conv_kernel - 1 rows, oldest first
  std::vector<float> heads;
};

// The convolved columns [first, first + count) of the row `qkv`.
std::vector<float> Convolve(const GatedDeltaCall& call, const State& state, const float* qkv, uint32_t first,
                            uint32_t count) {
  const uint32_t kernel_size = call.shape.conv_kernel;
  std::vector<float> out;
  for (uint32_t c = first; c < first + count; ++c) {
    float sum = 0;
    for (uint32_t j = 0; j < kernel_size; ++j) {
      const float x = j + 1 < kernel_size ? state.inputs[uint64_t{j} * call.ConvCols() + c] : qkv[c];
      sum = std::fma(x, call.conv.Row(c)[j], sum);
    }
    out.push_back(Silu(sum + 0.0f));
  }
  return out;
}

// The factors of a value head's state: one, or one for each channel of the key.
std::vector<float> Decays(const GatedDeltaCall& call, uint32_t t, uint32_t head) {
  std::vector<float> decays;
  const float a = Exp(call.a_log[head]);
  for (uint32_t i = head * call.HeadDecays(); i < (head + 1) * call.HeadDecays(); ++i) {
    const float x = call.decay.Row(t)[i] + call.dt_bias[i];
    const float floor = call.shape.decay_floor;
    decays.push_back(Exp(floor < 0 ? floor * Sigmoid(a * x) : -(a * SoftplusOf(x, Exp(x)))));
  }
  return decays;
}

// Computes one token of one value head.
void Step(const GatedDeltaCall& call, uint32_t t, uint32_t head, State& state) {
  const DeltaConfig& d = call.shape;
  const uint32_t key_head = head / (d.value_heads / d.key_heads);
  const float* qkv = call.qkv.Row(t);
  std::vector<float> q = Convolve(call, state, qkv, key_head * d.key_dim, d.key_dim);
  std::vector<float> k = Convolve(call, state, qkv, (d.key_heads + key_head) * d.key_dim, d.key_dim);
  const std::vector<float> v =
      Convolve(call, state, qkv, 2 * d.key_heads * d.key_dim + head * d.value_dim, d.value_dim);
  L2Norm(q);
  L2Norm(k);
  const float q_scale = static_cast<float>(1 / std::sqrt(double{static_cast<double>(d.key_dim)}));
  for (float& value : q) {
    value = value * q_scale;
  }
  const std::vector<float> decay = Decays(call, t, head);
  const float beta = Sigmoid(call.beta.Row(t)[head]);
  float* s = state.heads.data() + head * call.HeadFloats();
  std::vector<float> o(d.value_dim);
  for (uint32_t j = 0; j < d.value_dim; ++j) {
    float memory = 0;
    for (uint32_t i = 0; i < d.key_dim; ++i) {
      float& cell = s[uint64_t{i} * d.value_dim + j];
      cell = cell * decay[call.HeadDecays() == 1 ? 0 : i];
      memory = std::fma(cell, k[i], memory);
    }
    const float delta = (v[j] - (memory + 0.0f)) * beta;
    for (uint32_t i = 0; i < d.key_dim; ++i) {
      float& cell = s[uint64_t{i} * d.value_dim + j];
      cell = std::fma(k[i], delta, cell);
      o[j] = std::fma(cell, q[i], o[j]);
    }
    o[j] = o[j] + 0.0f;
  }
  NormRow(call.norm, o.data(), d.value_dim, o.data());
  const float* z = call.z.Row(t) + uint64_t{head} * d.value_dim;
  float* out = call.out.Row(t) + uint64_t{head} * d.value_dim;
  for (uint32_t j = 0; j < d.value_dim; ++j) {
    out[j] = o[j] * (d.sigmoid_gate ? Sigmoid(z[j]) : Silu(z[j]));
  }
}

}  // namespace

void Run(Device&, const GatedDeltaCall& call) {
  const uint64_t conv = call.ConvFloats();
  const uint64_t heads = call.shape.value_heads * call.HeadFloats();
  for (size_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    State state{std::vector<float>(conv, 0.0f), std::vector<float>(heads, 0.0f)};
    if (const float* slot = call.states.From(i); slot != nullptr) {
      state.inputs.assign(slot, slot + conv);
      state.heads.assign(slot + conv, slot + conv + heads);
    }
    for (uint32_t row = 0; row < sequence.rows; ++row) {
      const uint32_t t = sequence.first_row + row;
      for (uint32_t head = 0; head < call.shape.value_heads; ++head) {
        Step(call, t, head, state);
      }
      state.inputs.insert(state.inputs.end(), call.qkv.Row(t), call.qkv.Row(t) + call.ConvCols());
      state.inputs.erase(state.inputs.begin(), state.inputs.begin() + call.ConvCols());
    }
    float* slot = call.states.To(i);
    std::copy(state.inputs.begin(), state.inputs.end(), slot);
    std::copy(state.heads.begin(), state.heads.end(), slot + conv);
  }
}

// ARITHMETIC.md section 10.

namespace {

// Rows of `cols` values, oldest first, of which the last is this token's: the sum for column c over every
// `dilation`-th of them.
float Convolve(const std::vector<std::vector<float>>& rows, const InRows& weights, float bias, uint32_t c,
               uint32_t dilation = 1) {
  float sum = bias;
  for (size_t j = 0; j * dilation < rows.size(); ++j) {
    sum = std::fma(rows[j * dilation][c], weights.Row(j)[c], sum);
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
    std::vector<std::vector<float>> rows = RowsBefore(call.states.From(i), call.Reach(), width);
    for (uint32_t row = 0; row < sequence.rows; ++row) {
      const uint32_t t = sequence.first_row + row;
      const float* bcx = call.bcx.Row(t);
      rows.emplace_back(width);
      for (uint32_t c = 0; c < width; ++c) {
        rows.back()[c] = call.gated ? bcx[c] * bcx[2 * uint64_t{width} + c] : bcx[c];
      }
      for (uint32_t c = 0; c < width; ++c) {
        const float sum =
            Convolve(rows, call.conv, call.bias == nullptr ? 0.0f : call.bias[c], c, call.dilation);
        call.out.Row(t)[c] = call.gated ? bcx[uint64_t{width} + c] * sum : Silu(sum);
      }
      rows.erase(rows.begin());
    }
    StoreRows(rows, call.states.To(i));
  }
}

void Run(Device&, const SelectiveScanCall& call) {
  for (size_t i = 0; i < call.states.sequences.size(); ++i) {
    const SequenceRows& sequence = call.states.sequences[i];
    const uint64_t floats = uint64_t{call.state_size} * call.channels;
    std::vector<float> state(floats, 0.0f);
    if (const float* slot = call.states.From(i); slot != nullptr) {
      state.assign(slot, slot + floats);
    }
    for (uint32_t t = sequence.first_row; t < sequence.first_row + sequence.rows; ++t) {
      for (uint32_t c = 0; c < call.channels; ++c) {
        const float x = call.x.Row(t)[c];
        const float step = SoftplusOf(call.step.Row(t)[c], Exp(call.step.Row(t)[c]));
        float y = 0;
        for (uint32_t n = 0; n < call.state_size; ++n) {
          float& cell = state[uint64_t{n} * call.channels + c];
          const float decay = Exp(-(step * Exp(call.a_log.Row(n)[c])));
          cell = std::fma(call.b.Row(t)[n], step * x, cell * decay);
          y = std::fma(cell, call.c.Row(t)[n], y);
        }
        call.out.Row(t)[c] = std::fma(call.skip[c], x, y + 0.0f) * Silu(call.z.Row(t)[c]);
      }
    }
    std::copy(state.begin(), state.end(), call.states.To(i));
  }
}

}  // namespace sluice::reference
