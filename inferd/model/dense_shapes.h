// Dense matrices of a pack that a device may multiply by in another arithmetic (PrefillMath).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Encodings and shapes of the projections and of the head, each once. Without matrices whose products choose
// something, as a router or an indexer does, and without any of the same shape: a choice keeps its bits in
// every arithmetic.
std::vector<DenseShape> DenseShapesOf(const Pack& pack);

}  // namespace sluice::inferd
