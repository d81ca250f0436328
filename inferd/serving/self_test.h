// SelfTest: makes one token, the proof behind "ready". gRPC-free.
//
// Thread safety: safe to call from any thread; it blocks.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inferd/api/engine_api.h"

namespace sluice {

// Has `engine` answer the one-token prompt `token` with one token. The engine's error, or DEADLINE_EXCEEDED
// after `limit`.
absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit);

}  // namespace sluice
