// GatedDelta: a tile is one value head of one sequence, over all its rows; tokens follow each other within
// it.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/scalar_math.h"

namespace sluice::cpu {

namespace {

// Inputs of a convolution with a state: rows of a sequence, and before its first row those that the state
// kept.
struct ConvInputs {
  const SequenceRows* sequence = nullptr;
  InRows rows;                  // of the batch
  const float* kept = nullptr;  // [kernel_size - 1][cols]; nullptr: zeros
  const float* zeros = nullptr;
  uint32_t kernel_size = 0;
  uint32_t cols = 0;
  // The input `back` rows before the sequence's row `row`, from `column` on.
  const float* At(uint32_t row, uint32_t back, uint32_t column) const {
    if (back <= row) {
      return rows.Row(sequence->first_row + row - back) + column;
    }
    return kept == nullptr ? zeros : kept + uint64_t{kernel_size - 1 + row - back} * cols + column;
  }
};

// Computes silu of the convolution of `call.cols` columns, from `column` on, of row `row`. The caller sets
// weights and output.
void Convolve(const KernelTable& kernels, const ConvInputs& in, uint32_t row, uint32_t column,
              ConvolveCall call) {
  const float* inputs[kMaxConvKernel];
  for (uint32_t j = 0; j < in.kernel_size; ++j) {
    inputs[j] = in.At(row, in.kernel_size - 1 - j, column);
  }
  call.rows = inputs;
  call.kernel_size = in.kernel_size;
  kernels.convolve_silu(call);
}

// Keeps the inputs of `count` columns in the new slot, for the rows of the next step.
void KeepInputs(const ConvInputs& in, uint32_t column, uint32_t count, float* slot) {
  for (uint32_t j = 0; j + 1 < in.kernel_size; ++j) {
    std::memcpy(slot + uint64_t{j} * in.cols + column,
                in.At(in.sequence->rows, in.kernel_size - 1 - j, column), count * sizeof(float));
  }
}

// y *= silu(z); `gates` has room for n values.
void MultiplyBySilu(const KernelTable& kernels, const float* z, uint32_t n, float* gates, float* y) {
  FactorCall silu;
  silu.x = z;
  silu.n = n;
  silu.y = gates;
  kernels.gate_factor(silu);
  kernels.multiply(y, gates, n, y);
}

// One value head of one sequence.
struct DeltaTile {
  ConvInputs inputs;
  uint32_t head = 0;
  const float* old_cells = nullptr;  // the head's state before the first row
  float* cells = nullptr;            // the state in its new slot
  // For q, k and v: first column of qkv, number of columns, weights [kernel_size][count], convolved row.
  uint32_t column[3] = {};
  uint32_t count[3] = {};
  float* weights[3] = {};
  float* values[3] = {};
  float* decays = nullptr;  // [HeadDecays]
};

// exp of one value: the lane sum of a single term is the term.
float Exp(const KernelTable& kernels, float x) { return kernels.exp_sum(&x, 0.0f, 1, nullptr); }

// The factors of the head's state (section 9).
void MakeDecays(Device& d, const GatedDeltaCall& call, const DeltaTile& tile, uint32_t t) {
  const uint32_t count = call.HeadDecays();
  const uint64_t first = uint64_t{tile.head} * count;
  const float a = Exp(d.kernels, call.a_log[tile.head]);
  const float floor = call.shape.decay_floor;
  for (uint32_t i = 0; i < count; ++i) {
    const float x = call.decay.Row(t)[first + i] + call.dt_bias[first + i];
    tile.decays[i] = floor < 0 ? a * x : -(a * SoftplusOf(x, Exp(d.kernels, x)));
  }
  if (floor < 0) {
    d.kernels.sigmoid(tile.decays, count, tile.decays);
    for (uint32_t i = 0; i < count; ++i) {
      tile.decays[i] = floor * tile.decays[i];
    }
  }
  d.kernels.exp_sum(tile.decays, 0.0f, count, tile.decays);
}

void DeltaToken(Device& d, const GatedDeltaCall& call, const DeltaTile& tile, uint32_t row) {
  const DeltaConfig& shape = call.shape;
  const uint32_t t = tile.inputs.sequence->first_row + row;
  for (int part = 0; part < 3; ++part) {
    ConvolveCall convolve;
    convolve.weights = tile.weights[part];
    convolve.stride = tile.count[part];
    convolve.cols = tile.count[part];
    convolve.y = tile.values[part];
    Convolve(d.kernels, tile.inputs, row, tile.column[part], convolve);
  }
  d.kernels.l2_norm(tile.values[0], shape.key_dim,
                    static_cast<float>(1 / std::sqrt(double{static_cast<double>(shape.key_dim)})));
  d.kernels.l2_norm(tile.values[1], shape.key_dim, 1.0f);
  MakeDecays(d, call, tile, t);
  DeltaStepCall step;
  step.from = row == 0 ? tile.old_cells : tile.cells;
  step.to = tile.cells;
  step.q = tile.values[0];
  step.k = tile.values[1];
  step.v = tile.values[2];
  step.decay = tile.decays;
  step.decay_step = call.HeadDecays() > 1 ? 1 : 0;
  d.kernels.sigmoid(call.beta.Row(t) + tile.head, 1, &step.beta);
  step.key_dim = shape.key_dim;
  step.value_dim = shape.value_dim;
  step.o = call.out.Row(t) + uint64_t{tile.head} * shape.value_dim;
  d.kernels.delta_step(step);
  NormRow(d.kernels, call.norm, step.o, shape.value_dim, step.o);
  const float* z = call.z.Row(t) + uint64_t{tile.head} * shape.value_dim;
  if (shape.sigmoid_gate) {
    d.kernels.sigmoid_mul(z, shape.value_dim, step.o);
    return;
  }
  MultiplyBySilu(d.kernels, z, shape.value_dim, tile.values[2], step.o);
}

void DeltaHead(Device& d, const GatedDeltaCall& call, uint32_t sequence, uint32_t head, uint32_t worker) {
  const DeltaConfig& shape = call.shape;
  const uint32_t sharers = shape.value_heads / shape.key_heads;
  const uint32_t key_head = head / sharers;
  const float* old_slot = call.states.From(sequence);
  const bool begins = old_slot == nullptr;
  float* slot = call.states.To(sequence);
  DeltaTile tile;
  tile.inputs = {&call.states.sequences[sequence],
                 call.qkv,
                 old_slot,
                 d.space.zeros(),
                 shape.conv_kernel,
                 call.ConvCols()};
  tile.head = head;
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
        tile.weights[part][uint64_t{j} * tile.count[part] + c] = call.conv.Row(columns[part] + c)[j];
      }
    }
  }
  tile.decays = memory;
  for (uint32_t row = 0; row < tile.inputs.sequence->rows; ++row) {
    DeltaToken(d, call, tile, row);
  }
  // Keeps the inputs for the next rows; the first sharer of a key head keeps that head's.
  for (int part = head % sharers == 0 ? 0 : 2; part < 3; ++part) {
    KeepInputs(tile.inputs, columns[part], tile.count[part], slot);
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

// Mamba: a tile is one head of one sequence, over all its rows, then a tile is the norms of one row.
// ShortConv, SelectiveScan: a tile is some columns of one sequence, over all its rows.

namespace {

constexpr int kMambaParts = 3;  // x, B, C

// One head of one sequence.
struct MambaTile {
  ConvInputs inputs;
  uint32_t head = 0;
  const float* old_cells = nullptr;   // the head's state before the first row
  float* cells = nullptr;             // the state in its new slot
  uint32_t column[kMambaParts] = {};  // first column in xbc, and number of columns
  uint32_t count[kMambaParts] = {};
  float* values[kMambaParts] = {};  // the convolved row
};

void MambaToken(Device& d, const MambaCall& call, const MambaTile& tile, uint32_t row) {
  const MambaConfig& shape = call.shape;
  const uint32_t t = tile.inputs.sequence->first_row + row;
  for (int part = 0; part < kMambaParts; ++part) {
    ConvolveCall convolve;
    convolve.weights = call.conv.base + tile.column[part];
    convolve.stride = call.conv.stride;
    convolve.bias = call.conv_bias + tile.column[part];
    convolve.cols = tile.count[part];
    convolve.y = tile.values[part];
    Convolve(d.kernels, tile.inputs, row, tile.column[part], convolve);
  }
  const float x = call.dt.Row(t)[tile.head] + call.dt_bias[tile.head];
  MambaStepCall step;
  step.step = std::max(SoftplusOf(x, Exp(d.kernels, x)), shape.min_step);
  if (shape.max_step > 0) {
    step.step = std::min(step.step, shape.max_step);
  }
  step.decay = Exp(d.kernels, -(step.step * Exp(d.kernels, call.a_log[tile.head])));
  step.skip = call.skip[tile.head];
  step.from = row == 0 ? tile.old_cells : tile.cells;
  step.to = tile.cells;
  step.x = tile.values[0];
  step.b = tile.values[1];
  step.c = tile.values[2];
  step.state = shape.state;
  step.head_dim = shape.head_dim;
  step.y = call.out.Row(t) + uint64_t{tile.head} * shape.head_dim;
  d.kernels.mamba_step(step);
  MultiplyBySilu(d.kernels, call.z.Row(t) + uint64_t{tile.head} * shape.head_dim, shape.head_dim,
                 tile.values[0], step.y);
}

void MambaHead(Device& d, const MambaCall& call, uint32_t sequence, uint32_t head, uint32_t worker) {
  const MambaConfig& shape = call.shape;
  const uint32_t sharers = shape.heads / shape.groups;
  const uint32_t group = head / sharers;
  const float* old_slot = call.states.From(sequence);
  float* slot = call.states.To(sequence);
  const uint64_t place = call.ConvFloats() + head * call.HeadFloats();
  MambaTile tile;
  tile.inputs = {&call.states.sequences[sequence],
                 call.xbc,
                 old_slot,
                 d.space.zeros(),
                 shape.conv_kernel,
                 call.ConvCols()};
  tile.head = head;
  tile.cells = slot + place;
  tile.old_cells = old_slot == nullptr ? tile.cells : old_slot + place;
  if (old_slot == nullptr) {
    std::memset(tile.cells, 0, call.HeadFloats() * sizeof(float));
  }
  const uint32_t columns[kMambaParts] = {head * shape.head_dim, call.ColumnB(group), call.ColumnC(group)};
  float* memory = d.space.workers[worker].any;
  for (int part = 0; part < kMambaParts; ++part) {
    tile.column[part] = columns[part];
    tile.count[part] = part == 0 ? shape.head_dim : shape.state;
    tile.values[part] = memory;
    memory += tile.count[part];
  }
  for (uint32_t row = 0; row < tile.inputs.sequence->rows; ++row) {
    MambaToken(d, call, tile, row);
  }
  // Keeps the inputs for the next rows; the first head of a group keeps the group's.
  for (int part = 0; part < (head % sharers == 0 ? kMambaParts : 1); ++part) {
    KeepInputs(tile.inputs, columns[part], tile.count[part], slot);
  }
}

// Convolves columns [first, first + count) of one sequence.
void ConvolveColumns(Device& d, const ShortConvCall& call, uint32_t sequence, uint32_t first, uint32_t count,
                     float* memory) {
  const uint32_t width = call.shape.width;
  const uint32_t kernel_size = call.shape.kernel;
  const uint32_t reach = call.Reach();
  const SequenceRows& rows = call.states.sequences[sequence];
  const float* old_slot = call.states.From(sequence);
  // The last reach + 1 rows of u in a ring: row i of the sequence is at (i + reach) % (reach + 1).
  for (uint32_t j = 0; j < reach; ++j) {
    float* place = memory + uint64_t{j} * kConvColumns;
    if (old_slot == nullptr) {
      std::memset(place, 0, count * sizeof(float));
    } else {
      std::memcpy(place, old_slot + uint64_t{j} * width + first, count * sizeof(float));
    }
  }
  for (uint32_t row = 0; row < rows.rows; ++row) {
    const uint32_t t = rows.first_row + row;
    const float* bcx = call.bcx.Row(t) + first;
    const float* inputs[kMaxConvKernel];
    for (uint32_t j = 0; j < kernel_size; ++j) {
      inputs[j] = memory + uint64_t{(row + j * call.dilation) % (reach + 1)} * kConvColumns;
    }
    float* newest = memory + uint64_t{(row + reach) % (reach + 1)} * kConvColumns;
    ConvolveCall convolve;
    convolve.rows = inputs;
    convolve.weights = call.conv.base + first;
    convolve.stride = call.conv.stride;
    convolve.bias = call.bias == nullptr ? nullptr : call.bias + first;
    convolve.kernel_size = kernel_size;
    convolve.cols = count;
    convolve.y = call.out.Row(t) + first;
    if (!call.gated) {
      std::memcpy(newest, bcx, count * sizeof(float));
      d.kernels.convolve_silu(convolve);
      continue;
    }
    d.kernels.multiply(bcx, bcx + 2 * uint64_t{width}, count, newest);
    d.kernels.convolve(convolve);
    d.kernels.multiply(bcx + width, convolve.y, count, convolve.y);
  }
  for (uint32_t j = 0; j < reach; ++j) {
    std::memcpy(call.states.To(sequence) + uint64_t{j} * width + first,
                memory + uint64_t{(rows.rows + j) % (reach + 1)} * kConvColumns, count * sizeof(float));
  }
}

// Computes channels [first, first + count) of one sequence.
void ScanChannels(Device& d, const SelectiveScanCall& call, uint32_t sequence, uint32_t first, uint32_t count,
                  float* memory) {
  const SequenceRows& rows = call.states.sequences[sequence];
  const float* old_slot = call.states.From(sequence);
  float* slot = call.states.To(sequence);
  for (uint32_t n = 0; n < call.state_size && old_slot == nullptr; ++n) {
    std::memset(slot + uint64_t{n} * call.channels + first, 0, count * sizeof(float));
  }
  float* steps = memory;
  float* gates = memory + kConvColumns;
  for (uint32_t row = 0; row < rows.rows; ++row) {
    const uint32_t t = rows.first_row + row;
    const float* raw = call.step.Row(t) + first;
    d.kernels.exp_sum(raw, 0.0f, count, steps);
    for (uint32_t i = 0; i < count; ++i) {
      steps[i] = SoftplusOf(raw[i], steps[i]);
    }
    SelectiveStepCall step;
    step.from = (row == 0 && old_slot != nullptr ? old_slot : slot) + first;
    step.to = slot + first;
    step.from_stride = call.channels;
    step.a_log = call.a_log.base + first;
    step.a_stride = call.a_log.stride;
    step.x = call.x.Row(t) + first;
    step.step = steps;
    step.skip = call.skip + first;
    step.b = call.b.Row(t);
    step.c = call.c.Row(t);
    step.state = call.state_size;
    step.count = count;
    step.y = call.out.Row(t) + first;
    d.kernels.selective_step(step);
    MultiplyBySilu(d.kernels, call.z.Row(t) + first, count, gates, step.y);
  }
}

}  // namespace

void Run(Device& d, const SelectiveScanCall& call) {
  const uint32_t blocks = (call.channels + kConvColumns - 1) / kConvColumns;
  const uint64_t work = uint64_t{call.tokens} * call.channels * (16 * call.state_size + 16);
  d.tiles.Run(static_cast<uint32_t>(call.states.sequences.size()) * blocks, work,
              [&](uint32_t tile, uint32_t worker) {
                const uint32_t first = tile % blocks * kConvColumns;
                ScanChannels(d, call, tile / blocks, first, std::min(kConvColumns, call.channels - first),
                             d.space.workers[worker].any);
              });
}

void Run(Device& d, const MambaCall& call) {
  const MambaConfig& shape = call.shape;
  const uint64_t work = uint64_t{call.tokens} * shape.heads * (2 * call.HeadFloats() + 64);
  d.tiles.Run(static_cast<uint32_t>(call.states.sequences.size()) * shape.heads, work,
              [&](uint32_t tile, uint32_t worker) {
                MambaHead(d, call, tile / shape.heads, tile % shape.heads, worker);
              });
  const uint32_t width = call.Values() / shape.groups;
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.Values() * 2, [&](uint32_t t, uint32_t) {
    for (uint32_t group = 0; group < shape.groups; ++group) {
      float* values = call.out.Row(t) + uint64_t{group} * width;
      d.kernels.rms_norm(values, width, call.norm.weight + uint64_t{group} * width, call.norm.epsilon,
                         values);
    }
  });
}

void Run(Device& d, const ShortConvCall& call) {
  const uint32_t width = call.shape.width;
  const uint32_t blocks = (width + kConvColumns - 1) / kConvColumns;
  const uint64_t work = uint64_t{call.tokens} * width * (call.shape.kernel + 2);
  d.tiles.Run(static_cast<uint32_t>(call.states.sequences.size()) * blocks, work,
              [&](uint32_t tile, uint32_t worker) {
                const uint32_t first = tile % blocks * kConvColumns;
                ConvolveColumns(d, call, tile / blocks, first, std::min(kConvColumns, width - first),
                                d.space.workers[worker].any);
              });
}

}  // namespace sluice::cpu
