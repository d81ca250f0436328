// GatedDelta: a tile is one value head of one sequence, over all its rows; tokens follow each other within
// it.
#include <cmath>
#include <cstring>

#include "kernels/common/scalar_math.h"
#include "kernels/host/ops/device.h"
#include "kernels/host/rows/norm_row.h"

namespace sluice::cpu {

namespace {

// One value head of one sequence.
struct DeltaTile {
  const SequenceRows* sequence = nullptr;
  uint32_t head = 0;
  const float* old_inputs = nullptr;  // the convolution's inputs before the first row; nullptr: zeros
  const float* old_cells = nullptr;   // the head's state before the first row
  float* cells = nullptr;             // the state in its new slot
  // For q, k and v: first column of qkv, number of columns, weights [kernel_size][count], convolved row.
  uint32_t column[3] = {};
  uint32_t count[3] = {};
  float* weights[3] = {};
  float* values[3] = {};
};

// exp of one value: the lane sum of a single term is the term.
float Exp(const KernelTable& kernels, float x) { return kernels.exp_sum(&x, 0.0f, 1, nullptr); }

// The convolution's input `back` rows before the sequence's row `row`.
const float* InputAt(const GatedDeltaCall& call, const SequenceRows& sequence, const float* old_inputs,
                     const float* zeros, uint32_t row, uint32_t back, uint32_t column) {
  if (back <= row) {
    return call.qkv.Row(sequence.first_row + row - back) + column;
  }
  const uint32_t kept = call.shape.conv_kernel - 1;
  return old_inputs == nullptr ? zeros : old_inputs + uint64_t{kept + row - back} * call.ConvCols() + column;
}

void DeltaToken(Device& d, const GatedDeltaCall& call, const DeltaTile& tile, uint32_t row) {
  const DeltaConfig& shape = call.shape;
  const uint32_t t = tile.sequence->first_row + row;
  const float* zeros = d.space.zeros();
  for (int part = 0; part < 3; ++part) {
    const float* inputs[kMaxConvKernel];
    for (uint32_t j = 0; j < shape.conv_kernel; ++j) {
      inputs[j] = InputAt(call, *tile.sequence, tile.old_inputs, zeros, row, shape.conv_kernel - 1 - j,
                          tile.column[part]);
    }
    ConvolveCall convolve;
    convolve.rows = inputs;
    convolve.weights = tile.weights[part];
    convolve.stride = tile.count[part];
    convolve.kernel_size = shape.conv_kernel;
    convolve.cols = tile.count[part];
    convolve.y = tile.values[part];
    d.kernels.convolve_silu(convolve);
  }
  d.kernels.l2_norm(tile.values[0], shape.key_dim,
                    static_cast<float>(1 / std::sqrt(double{static_cast<double>(shape.key_dim)})));
  d.kernels.l2_norm(tile.values[1], shape.key_dim, 1.0f);
  const float x = call.decay.Row(t)[tile.head] + call.dt_bias[tile.head];
  const float g = -(Exp(d.kernels, call.a_log[tile.head]) * SoftplusOf(x, Exp(d.kernels, x)));
  DeltaStepCall step;
  step.from = row == 0 ? tile.old_cells : tile.cells;
  step.to = tile.cells;
  step.q = tile.values[0];
  step.k = tile.values[1];
  step.v = tile.values[2];
  step.decay = Exp(d.kernels, g);
  d.kernels.sigmoid(call.beta.Row(t) + tile.head, 1, &step.beta);
  step.key_dim = shape.key_dim;
  step.value_dim = shape.value_dim;
  step.o = call.out.Row(t) + uint64_t{tile.head} * shape.value_dim;
  d.kernels.delta_step(step);
  NormRow(d.kernels, call.norm, step.o, shape.value_dim, step.o);
  FactorCall silu;
  silu.x = call.z.Row(t) + uint64_t{tile.head} * shape.value_dim;
  silu.n = shape.value_dim;
  silu.y = tile.values[2];
  d.kernels.gate_factor(silu);
  d.kernels.multiply(step.o, silu.y, shape.value_dim, step.o);
}

void DeltaHead(Device& d, const GatedDeltaCall& call, uint32_t sequence, uint32_t head, uint32_t worker) {
  const DeltaConfig& shape = call.shape;
  const uint32_t sharers = shape.value_heads / shape.key_heads;
  const uint32_t key_head = head / sharers;
  const float* old_slot = call.states.From(sequence);
  const bool begins = old_slot == nullptr;
  float* slot = call.states.To(sequence);
  DeltaTile tile;
  tile.sequence = &call.states.sequences[sequence];
  tile.head = head;
  tile.old_inputs = old_slot;
  const uint64_t place = call.ConvFloats() + head * call.HeadFloats();
  tile.cells = slot + place;
  tile.old_cells = begins ? tile.cells : old_slot + place;
  if (begins) {
    std::memset(tile.cells, 0, call.HeadFloats() * sizeof(float));
  }
  const uint32_t columns[3] = {key_head * shape.key_dim, (shape.key_heads + key_head) * shape.key_dim,
                               2 * shape.key_heads * shape.key_dim + head * shape.value_dim};
  float* memory = d.space.workers[worker].any;
  for (int part = 0; part < 3; ++part) {
    tile.column[part] = columns[part];
    tile.count[part] = part == 2 ? shape.value_dim : shape.key_dim;
    tile.values[part] = memory;
    tile.weights[part] = memory + tile.count[part];
    memory += uint64_t{tile.count[part]} * (shape.conv_kernel + 1);
    for (uint32_t c = 0; c < tile.count[part]; ++c) {
      for (uint32_t j = 0; j < shape.conv_kernel; ++j) {
        tile.weights[part][uint64_t{j} * tile.count[part] + c] =
            call.conv[uint64_t{columns[part] + c} * shape.conv_kernel + j];
      }
    }
  }
  for (uint32_t row = 0; row < tile.sequence->rows; ++row) {
    DeltaToken(d, call, tile, row);
  }
  // Keeps the inputs for the next rows; the first sharer of a key head keeps that head's.
  const float* zeros = d.space.zeros();
  for (int part = head % sharers == 0 ? 0 : 2; part < 3; ++part) {
    for (uint32_t j = 0; j + 1 < shape.conv_kernel; ++j) {
      std::memcpy(slot + uint64_t{j} * call.ConvCols() + columns[part],
                  InputAt(call, *tile.sequence, old_slot, zeros, tile.sequence->rows,
                          shape.conv_kernel - 1 - j, columns[part]),
                  tile.count[part] * sizeof(float));
    }
  }
}

}  // namespace

void Run(Device& d, const GatedDeltaCall& call) {
  const uint32_t heads = call.shape.value_heads;
  const uint64_t work = uint64_t{call.tokens} * heads * (3 * call.HeadFloats() + 64);
  d.tiles.Run(
      static_cast<uint32_t>(call.states.sequences.size()) * heads, work,
      [&](uint32_t tile, uint32_t worker) { DeltaHead(d, call, tile / heads, tile % heads, worker); });
}

}  // namespace sluice::cpu
