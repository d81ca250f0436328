// ARITHMETIC.md section 3.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/pack/row_layout.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice {
namespace {

// Adds sum of c[j] * down row j, j in [first, first + c.size()), to y: one block.
void AddPlainBlock(const CpuWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  for (uint32_t h = 0; h < down.cols; ++h) {
    float s = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        s = std::fma(c[j], reference::PlainValue(down.encoding.encoding, row, h), s);
      }
    }
    y[h] = y[h] + (s + 0.0f);
  }
}

void AddQuantizedBlock(const CpuWeights& down, uint32_t first, const std::vector<float>& c, float* y) {
  const EncodingDescriptor& e = down.encoding;
  std::vector<float> d(c.size());
  std::vector<int16_t> q(c.size());
  for (uint32_t h0 = 0, g = 0; h0 < down.cols; h0 += e.group, ++g) {
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      d[j] = row == nullptr ? 0.0f : c[j] * reference::ScaleAt(e, row, down.cols, g);
    }
    const float sd = reference::RoundToInt16(d.data(), d.size(), q.data());
    float z = 0;
    for (size_t j = 0; j < c.size(); ++j) {
      const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
      if (row != nullptr) {
        z = std::fma(static_cast<float>(q[j]), reference::ZeroAt(e, row, down.cols, g), z);
      }
    }
    for (uint32_t h = h0; h < std::min(h0 + e.group, down.cols); ++h) {
      int32_t s = 0;
      for (size_t j = 0; j < c.size(); ++j) {
        const uint8_t* row = down.Row(first + static_cast<uint32_t>(j));
        if (row != nullptr) {
          s += static_cast<int32_t>(reference::CodeAt(e, row, h)) * q[j];
        }
      }
      y[h] = y[h] + (sd * (static_cast<float>(s) - (z + 0.0f)) + 0.0f);
    }
  }
}

void ComputeExpertRow(const ExpertCall& e, uint32_t hidden, const float* x, float* y) {
  if (e.neuron_begin == 0) {
    std::fill(y, y + hidden, 0.0f);
  }
  std::vector<float> c;
  for (uint32_t block = e.neuron_begin; block < e.neuron_end; block += kNeuronBlock) {
    c.assign(std::min(kNeuronBlock, e.neuron_end - block), 0.0f);
    for (size_t j = 0; j < c.size(); ++j) {
      const uint32_t neuron = block + static_cast<uint32_t>(j);
      const uint8_t* gate = e.gate.Row(neuron);
      const uint8_t* up = e.up.Row(neuron);
      if (gate != nullptr && up != nullptr && e.down.Row(neuron) != nullptr) {
        c[j] = reference::SiluMul(reference::Dot(e.gate.encoding, gate, x, hidden),
                                  reference::Dot(e.up.encoding, up, x, hidden));
      }
    }
    if (IsQuantized(e.down.encoding.encoding)) {
      AddQuantizedBlock(e.down, block, c, y);
    } else {
      AddPlainBlock(e.down, block, c, y);
    }
  }
}

}  // namespace

void ReferenceBackend::Run(const MoeCall& call) {
  for (const ExpertCall& expert : call.experts) {
    for (size_t i = 0; i < expert.rows.size(); ++i) {
      ComputeExpertRow(expert, call.hidden, call.x.Row(expert.rows[i]), call.y.Row(expert.slots[i]));
    }
  }
}

}  // namespace sluice
