// Grids: the tables of eight (IQ3: four) values that the blocks of GGUF's IQ1, IQ2 and IQ3 types index, and
// masks of their signs. The numbers are those of ggml (MIT license), part of the file format.
//
// Thread safety: constants.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// An entry holds one value a byte, the first in the lowest byte. IQ2 and IQ3 hold magnitudes, whose signs
// stand in the blocks.
extern const std::array<uint64_t, 256> kIq2XxsGrid;  // 8, 25, 43
extern const std::array<uint64_t, 512> kIq2XsGrid;   // 8, 25, 43
extern const std::array<uint64_t, 1024> kIq2SGrid;   // 8, 25, 43
extern const std::array<uint64_t, 2048> kIq1SGrid;   // -8, 0, 8: eight times IQ1's -1, 0, 1
extern const std::array<uint32_t, 256> kIq3XxsGrid;  // 4, 12, 20, 28, 36, 44, 52, 62
extern const std::array<uint32_t, 512> kIq3SGrid;    // 1, 3 .. 15

// Masks of eight values: byte j is all ones where bit j of the index is set; and those of seven stored bits,
// to which the eighth makes their number even.
extern const std::array<uint64_t, 256> kSignMasks;
extern const std::array<uint64_t, 128> kEvenSignMasks;

}  // namespace sluice
