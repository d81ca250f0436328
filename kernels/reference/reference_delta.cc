// ARITHMETIC.md section 9.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/scalar_math.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

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
      sum = std::fma(x, call.conv[uint64_t{c} * kernel_size + j], sum);
    }
    out.push_back(Silu(sum + 0.0f));
  }
  return out;
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
  const float x = call.decay.Row(t)[head] + call.dt_bias[head];
  const float g = -(Exp(call.a_log[head]) * SoftplusOf(x, Exp(x)));
  const float decay = Exp(g);
  const float beta = Sigmoid(call.beta.Row(t)[head]);
  float* s = state.heads.data() + head * call.HeadFloats();
  std::vector<float> o(d.value_dim);
  for (uint32_t j = 0; j < d.value_dim; ++j) {
    float memory = 0;
    for (uint32_t i = 0; i < d.key_dim; ++i) {
      float& cell = s[uint64_t{i} * d.value_dim + j];
      cell = cell * decay;
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
    out[j] = o[j] * Silu(z[j]);
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

}  // namespace sluice::reference
