// Statistics of the routed experts during a run, from a server's counters by layer before and after it.
//
// Thread safety: plain values and pure functions.
#pragma once

#include "cli/ui/json.h"
#include "sluice/inference/v1/admin.pb.h"

namespace sluice::cli {

// Sums over layers, then shares of them; `layers` has the shares by layer. A share of nothing is null.
Json ExpertsJson(const inference::v1::GetStatsResponse& before, const inference::v1::GetStatsResponse& after);

}  // namespace sluice::cli
