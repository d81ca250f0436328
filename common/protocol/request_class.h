// Urgency of a read, from the engine's request to the link: one definition for the rings, both daemons and
// the schedule of copies. The values are part of the ABI (session_abi.h), which is why it is a header apart.
#pragma once

#include <cstdint>

namespace sluice {

// A demand is awaited by the running layer and goes first; a prefetch is only expected to be needed.
enum class RequestClass : uint8_t { kDemand = 0, kPrefetch = 1 };

}  // namespace sluice
