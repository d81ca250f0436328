// Fuzz targets of a session between weightd and a client that lies: the rings and regions of shared memory
// that either side can write, and the messages of the side socket with their descriptors.
//
// Thread safety: pure functions; one at a time, because they count descriptors.
#pragma once

#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace sluice {

// A client's writes into its regions, between rounds of weightd, beside an honest client that must not
// notice. Input: steps, each of a byte and its operands (session_targets.cc).
bool FuzzRings(const uint8_t* data, size_t size);
// Messages to weightd, each after a byte that says which descriptors come with it.
bool FuzzSideMessages(const uint8_t* data, size_t size);
// A control region as a client finds it, from a weightd that lies.
bool FuzzControlRegion(const uint8_t* data, size_t size);

std::vector<FuzzTarget> SessionTargets();

}  // namespace sluice
