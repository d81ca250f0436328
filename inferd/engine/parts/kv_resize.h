// Resize of a running engine's KV cache: pages and bytes of a new budget.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "inferd/engine/parts/engine_options.h"

namespace sluice::inferd {

// Bytes of `pages` pages and of the recurrent states beside them.
uint64_t KvBytesOf(const EnginePlan& plan, const ModelConfig& config, uint32_t pages);

// Number of pages that fit `kv_budget` bytes beside the recurrent states, whose number does not change; at
// most enough for `parallel` whole contexts. FAILED_PRECONDITION with the numbers if the pages cannot hold
// one sequence of `context` tokens.
absl::StatusOr<uint32_t> PagesWithin(const EnginePlan& plan, const ModelConfig& config, uint64_t kv_budget,
                                     uint32_t context);

}  // namespace sluice::inferd
