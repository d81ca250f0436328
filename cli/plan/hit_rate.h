// Estimated cache hit rate of experts from their request frequencies.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace sluice::cli {

// Share of requests that find their expert among the `share` of all experts that memory holds, the least
// recently used leaving first, for independent tokens (Che's approximation, with the order of layers).
// `usage`: [layer][expert], empty for even use; every layer makes its top_k requests a token. 0..1.
double HitRate(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage, double share);

}  // namespace sluice::cli
