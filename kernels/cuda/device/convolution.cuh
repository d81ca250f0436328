// Causal convolutions over the rows of a sequence and those that its state keeps.
#pragma once

#include "kernels/cuda/device/state.h"

namespace sluice::cuda {

// Input of column c of a convolution of `taps` rows and `cols` columns: input(t) for a row of the batch, the
// kept rows before the sequence's first one, zeros before those.
template <typename Input>
__device__ inline float ConvInput(const StateSequence& sequence, int row, unsigned taps, unsigned cols,
                                  unsigned c, Input input) {
  if (row >= 0) {
    return input(sequence.first_row + static_cast<unsigned>(row));
  }
  const unsigned kept = static_cast<unsigned>(row + static_cast<int>(taps) - 1);
  return sequence.from == nullptr ? 0.0f : sequence.from[kept * cols + c];
}

// The sum of row `row` for column c, oldest row first, from `bias`; weight(j): of its j-th row.
template <typename Input, typename Weight>
__device__ inline float Convolve(const StateSequence& sequence, unsigned row, unsigned taps, unsigned cols,
                                 unsigned c, float bias, Input input, Weight weight) {
  float sum = bias;
  for (unsigned j = 0; j < taps; ++j) {
    const int at = static_cast<int>(row + j) - static_cast<int>(taps) + 1;
    sum = fmaf(ConvInput(sequence, at, taps, cols, c, input), weight(j), sum);
  }
  return sum + 0.0f;
}

// Keeps the last taps - 1 rows of the sequence for the next step.
template <typename Input>
__device__ inline void KeepInputs(const StateSequence& sequence, unsigned taps, unsigned cols, unsigned c,
                                  Input input) {
  for (unsigned j = 0; j + 1 < taps; ++j) {
    const int at = static_cast<int>(sequence.rows + j) - static_cast<int>(taps) + 1;
    sequence.to[j * cols + c] = ConvInput(sequence, at, taps, cols, c, input);
  }
}

}  // namespace sluice::cuda
