// The kernels for AMX over a model of its tiles, for CPUs without it.
//
// Thread safety: as KernelTable.
#pragma once

#include "kernels/host/simd/kernel_table.h"

namespace sluice::cpu {

const KernelTable& TileModelKernels();

}  // namespace sluice::cpu
