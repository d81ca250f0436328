// SelfTest: generates one token, the condition for "ready". gRPC-free.
//
// Thread safety: safe to call from any thread; it blocks.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inferd/api/engine_api.h"

namespace sluice::inferd {

// Generates one token for the one-token prompt `token`. Returns the engine's error, or DEADLINE_EXCEEDED
// after `limit`.
absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit);

}  // namespace sluice::inferd
