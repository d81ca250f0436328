// Rows of file blocks (common/base/file_blocks.h) on the host: they are expanded to rows of 8-bit codes, a
// few at a time, and those are multiplied by the kernels of q8. Every instruction set and every type of block
// thus shares one path; only the unpacking of a block differs.
//
// Thread safety: pure functions but for the memory that the calls name.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace sluice::cpu {

// Layout of expanded rows: q8's plane of codes plus 128, then a float32 scale for each group.
RowShape ExpandedShape(const RowShape& file_row);

// Writes the expanded row, ExpandedShape().bytes at `out`, aligned to 4 bytes.
void ExpandFileRow(const RowShape& file_row, const uint8_t* row, uint8_t* out);

// Multiplies rows of file blocks: calls `product` with `at_once` expanded rows at a time, at most
// kMaxExpandedRows. The call's scratch holds FileRowFloats(cols) more than `product` needs, behind
// QuantGemmFloats(cols).
void MultiplyExpanded(const QuantDotCall& call, uint32_t at_once, void (*product)(const QuantDotCall&));

// KernelTable::quant_decode of file blocks.
void DecodeFileRow(const RowShape& file_row, const uint8_t* row, float scale, float* y);

}  // namespace sluice::cpu
