// ARITHMETIC.md section 3.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"

namespace sluice::reference {
namespace {

// Adds sum of c[j] * down row j, j in [first, first + c.size()), to y: one block.
void AddPlainBlock(const CallWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  for (uint32_t h = 0; h < down.cols; ++h) {
    float s = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        s = std::fma(c[j], PlainValue(down.encoding.encoding, row, h), s);
      }
    }
    y[h] = y[h] + (s + 0.0f);
  }
}

void AddQuantizedBlock(const CallWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  const EncodingDescriptor& e = down.encoding;
  std::vector<float> d(c.size());
  std::vector<int8_t> q(c.size());
  for (uint32_t h0 = 0, g = 0; h0 < down.cols; h0 += e.group, ++g) {
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      d[j] = row == nullptr ? 0.0f : c[j] * ScaleAt(e, row, down.cols, g);
    }
    const float sd = RoundToInt8(d.data(), d.size(), q.data());
    float z = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        z = std::fma(static_cast<float>(q[j]), ZeroAt(e, row, down.cols, g), z);
      }
    }
    for (uint32_t h = h0; h < std::min(h0 + e.group, down.cols); ++h) {
      int32_t s = 0;
      for (size_t j = 0; j < c.size(); ++j) {
        const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
        if (row != nullptr) {
          s += CodeAt(e, row, down.cols, h) * q[j];
        }
      }
      y[h] = y[h] + (sd * (static_cast<float>(s) - (z + 0.0f)) + 0.0f);
    }
  }
}

// Dot product of row j with its bias.
float BiasedDot(const CallWeights& part, uint32_t j, const float* bias, const float* x) {
  const float dot = Dot(part.encoding, part.Row(j), x, part.cols);
  return bias == nullptr ? dot : dot + bias[j];
}

// The coefficient of neuron j for the expert's row i. Sets `kept` to true if the neuron counts.
float Coefficient(const ActivationSpec& activation, const ExpertCall& e, uint32_t j, size_t i, const float* x,
                  bool* kept) {
  *kept = e.Has(j);
  if (!*kept) {
    return 0;
  }
  const float* made = e.lead_values.base == nullptr ? nullptr : e.lead_values.Row(i);
  const bool up_made = made != nullptr && e.sparsity == SparsityOrder::kUp;
  const bool gate_made = made != nullptr && !up_made;
  const float up = up_made ? made[j] : UpFactor(activation, BiasedDot(e.up, j, e.up_bias, x));
  const float gate = gate_made ? made[j] : GateFactor(activation, BiasedDot(e.gate, j, e.gate_bias, x));
  const float c = gate * up;
  const float lead = e.sparsity == SparsityOrder::kUp ? up : e.sparsity == SparsityOrder::kGate ? gate : c;
  *kept = e.sparsity == SparsityOrder::kNone || !(std::fabs(lead) < e.threshold);
  return *kept ? c : 0.0f;
}

// Returns the number of neurons that counted.
uint32_t ComputeExpertRow(const ActivationSpec& activation, const ExpertCall& e, uint32_t hidden, size_t row,
                          const float* x, float* y) {
  if (e.neuron_begin == 0) {
    for (uint32_t h = 0; h < hidden; ++h) {
      y[h] = e.down_bias == nullptr ? 0.0f : e.down_bias[h];
    }
  }
  uint32_t active = 0;
  std::vector<float> c;
  for (uint32_t block = e.neuron_begin; block < e.neuron_end; block += kNeuronBlock) {
    c.assign(std::min(kNeuronBlock, e.neuron_end - block), 0.0f);
    for (size_t j = 0; j < c.size(); ++j) {
      bool kept = false;
      c[j] = Coefficient(activation, e, block + static_cast<uint32_t>(j), row, x, &kept);
      active += kept ? 1 : 0;
    }
    if (IsQuantized(e.down.encoding.encoding)) {
      AddQuantizedBlock(e.down, block, c, y);
    } else {
      AddPlainBlock(e.down, block, c, y);
    }
  }
  return active;
}

}  // namespace

void Run(Device&, const ExpertLeadsCall& call) {
  for (const LeadCallPart& expert : call.experts) {
    const uint32_t width = expert.lead.rows;
    if (expert.active != nullptr) {
      std::fill_n(expert.active, (width + kNeuronBlock - 1) / kNeuronBlock, uint64_t{0});
    }
    for (size_t i = 0; i < expert.rows.size(); ++i) {
      for (uint32_t j = 0; j < width; ++j) {
        const float dot = BiasedDot(expert.lead, j, expert.bias, call.x.Row(expert.rows[i]));
        const float value = call.up ? UpFactor(call.activation, dot) : GateFactor(call.activation, dot);
        expert.values.Row(i)[j] = value;
        if (expert.active != nullptr && !(std::fabs(value) < expert.threshold)) {
          expert.active[j / kNeuronBlock] |= uint64_t{1} << j % kNeuronBlock;
        }
      }
    }
  }
}

void Run(Device&, const MoeExpertsCall& call) {
  for (const ExpertCall& expert : call.experts) {
    for (size_t i = 0; i < expert.rows.size(); ++i) {
      const uint32_t slot = expert.slots[i];
      const uint32_t active = ComputeExpertRow(call.activation, expert, call.hidden, i,
                                               call.x.Row(expert.rows[i]), call.y.Row(slot));
      if (call.active != nullptr) {
        call.active[slot] = (expert.neuron_begin == 0 ? 0 : call.active[slot]) + active;
      }
    }
  }
}

void Run(Device& device, const RoutedExpertsCall& call) { Run(device, GroupByExpert(call)); }

void Run(Device& device, const RoutedLeadsCall& call) { Run(device, AsLeads(call)); }

void Run(Device&, const CombineCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t h = 0; h < call.hidden; ++h) {
      float a = 0;
      for (uint32_t k = 0; k < call.top_k; ++k) {
        const uint64_t slot = uint64_t{t} * call.top_k + k;
        const float weight = call.weights == nullptr ? 1.0f : call.weights[slot];
        if (weight != 0) {
          a = std::fma(weight, call.y.Row(slot)[h], a);
        }
      }
      float sum = call.scale * (a + 0.0f);
      if (call.residual.base != nullptr) {
        sum = call.residual.Row(t)[h] + sum;
      }
      call.out.Row(t)[h] = call.gain == nullptr ? sum : call.gain[0] * sum;
    }
  }
}

}  // namespace sluice::reference
