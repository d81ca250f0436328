// The kernels for AMX over a model of its tiles, for CPUs without it.
//
// Thread safety: as KernelTable.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace sluice::cpu {

const KernelTable& TileModelKernels();

}  // namespace sluice::cpu
