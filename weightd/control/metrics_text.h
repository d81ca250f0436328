// weightd's metrics in Prometheus' words.
//
// Thread safety: a free function; it takes the store's lock once, for the counters that stand under it.
#ifndef SLUICE_WEIGHTD_METRICS_TEXT_H_
#define SLUICE_WEIGHTD_METRICS_TEXT_H_

#include <string>

#include "weightd/core/weight_store.h"

namespace sluice {

std::string WeightdMetrics(const WeightStore& store, const std::string& version);

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_METRICS_TEXT_H_
