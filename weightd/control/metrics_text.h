// weightd's metrics in Prometheus' words.
//
// Thread safety: a free function; it takes the store's lock once, for the counters that stand under it.
#pragma once

#include <string>

#include "weightd/core/weight_store.h"

namespace sluice {

std::string WeightdMetrics(const WeightStore& store, const std::string& version);

}  // namespace sluice
