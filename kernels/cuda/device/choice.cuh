// The order of numbers, for kernels that choose the largest.
#pragma once

namespace sluice::cuda {

// A number's bits in an order that is the numbers'; both zeros are one.
__device__ inline unsigned OrderedBits(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace sluice::cuda
