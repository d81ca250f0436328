// Selects the neurons of a predicted set by their lead values.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace sluice::inferd {

// Marks the selected neurons in `chosen` (a bit per value, 64 to a word, all of them written): those of at
// least `threshold`, or the ceil(share n) largest, ties to the lower index. A NaN counts as larger than every
// number under a share and never reaches a threshold.
void ChooseByThreshold(absl::Span<const float> values, float threshold, absl::Span<uint64_t> chosen);
void ChooseByShare(absl::Span<const float> values, double share, absl::Span<uint64_t> chosen);

}  // namespace sluice::inferd
