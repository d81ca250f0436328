// Time as the shadows know it. A phase is what a block does between two barriers, or a copy does as a whole:
// numbers from 1 on in the order in which the fake runs them, so that one comparison tells whether an earlier
// access was made in this phase, this block, this launch, or before.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

namespace sluice::cuda_fake {

using Phase = int32_t;  // 0: nobody's
inline constexpr Phase kNoPhase = std::numeric_limits<Phase>::max();

class Phases {
 public:
  // The first phase of what an operation now runs.
  Phase Begin(uint32_t operation) {
    const Phase first = Next();
    if (ranges_.empty() || ranges_.back().operation != operation) {
      ranges_.push_back({first, operation});
    }
    return first;
  }
  // Another phase of the operation that began last.
  Phase Next() {
    if (last_ == kNoPhase - 1) {
      std::fputs("cuda_fake: more blocks and barriers than the shadows can tell apart\n", stderr);
      std::abort();
    }
    return ++last_;
  }
  uint32_t OperationOf(Phase phase) const {
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), phase,
                                        [](Phase p, const Range& range) { return p < range.first; });
    return after == ranges_.begin() ? 0 : std::prev(after)->operation;
  }

 private:
  struct Range {
    Phase first;
    uint32_t operation;
  };
  Phase last_ = 0;
  std::vector<Range> ranges_;
};

}  // namespace sluice::cuda_fake
