// weightd's metrics in Prometheus' text format.
//
// Thread safety: a free function; it locks the store once, for the counters that its lock guards.
#pragma once

#include <string>

#include "weightd/core/weight_store.h"

namespace sluice::weightd {

std::string WeightdMetrics(const WeightStore& store, const std::string& version);

}  // namespace sluice::weightd
