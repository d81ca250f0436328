// weightd's self-test: it opens a session with itself and fetches one extent over its rings.
//
// Thread safety: a free function; it blocks its thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weightd/core/weight_store.h"

namespace sluice::weightd {

// Fetches the smallest extent of `pack`; if that fails, the smallest of the pack's other file, so that one
// bad block does not prevent serving everything else. The error of the last attempt, or DEADLINE_EXCEEDED
// after the timeout.
absl::Status FetchForTest(WeightStore* store, uint32_t pack, absl::Duration timeout);

}  // namespace sluice::weightd
