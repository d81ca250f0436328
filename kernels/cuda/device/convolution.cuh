// The operations with a recurrent state: the gated delta rule, Mamba-2 and the short convolution.
#pragma once

#include "kernels/cuda/device/state.h"

namespace sluice::cuda {

// Causal convolutions over the rows of a sequence and those that its state keeps.

// Input of column c of a convolution of `kernel_size` rows and `cols` columns: input(t) for a row of the
// batch, the kept rows before the sequence's first one, zeros before those.
template <typename Input>
__device__ inline float ConvInput(const StateSequence& sequence, int row, unsigned kernel_size, unsigned cols,
                                  unsigned c, Input input) {
  if (row >= 0) {
    return input(sequence.first_row + static_cast<unsigned>(row));
  }
  const unsigned kept = static_cast<unsigned>(row + static_cast<int>(kernel_size) - 1);
  return sequence.from == nullptr ? 0.0f : sequence.from[kept * cols + c];
}

// The sum of row `row` for column c, oldest row first, from `bias`; weight(j): of its j-th row.
template <typename Input, typename Weight>
__device__ inline float Convolve(const StateSequence& sequence, unsigned row, unsigned kernel_size,
                                 unsigned cols, unsigned c, float bias, Input input, Weight weight) {
  float sum = bias;
  for (unsigned j = 0; j < kernel_size; ++j) {
    const int at = static_cast<int>(row + j) - static_cast<int>(kernel_size) + 1;
    sum = fmaf(ConvInput(sequence, at, kernel_size, cols, c, input), weight(j), sum);
  }
  return sum + 0.0f;
}

// Keeps the last kernel_size - 1 rows of the sequence for the next step.
template <typename Input>
__device__ inline void KeepInputs(const StateSequence& sequence, unsigned kernel_size, unsigned cols,
                                  unsigned c, Input input) {
  for (unsigned j = 0; j + 1 < kernel_size; ++j) {
    const int at = static_cast<int>(sequence.rows + j) - static_cast<int>(kernel_size) + 1;
    sequence.to[j * cols + c] = ConvInput(sequence, at, kernel_size, cols, c, input);
  }
}

}  // namespace sluice::cuda
