// What another budget means for the KV cache of an engine that runs.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "inferd/engine/parts/engine_options.h"

namespace sluice {

// Bytes of so many pages and of the recurrent states beside them.
uint64_t KvBytesOf(const EnginePlan& plan, const ModelConfig& config, uint32_t pages);

// Pages that `kv_budget` bytes hold beside the recurrent states, which stay as many as they are; at most as
// many as `parallel` whole contexts take. FAILED_PRECONDITION with the numbers if these cannot hold one text
// of `context` tokens.
absl::StatusOr<uint32_t> PagesWithin(const EnginePlan& plan, const ModelConfig& config, uint64_t kv_budget,
                                     uint32_t context);

}  // namespace sluice
