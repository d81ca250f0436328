// Draft tokens (forward.h): tokens that probably follow a step. DraftTiming decides if a draft is worth its
// time: most of it must overlap the wait for experts. With a wide vocabulary or few missing experts the layer
// would wait for the draft instead.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

namespace sluice::inferd {

class DraftTiming {
 public:
  // True if a draft pays, by recent times of both: a draft may take kWorth times the wait, since a right one
  // saves an attention later and lets the disk read while it would be idle. True until both were measured. A
  // false makes the next true likelier, so that a draft delayed once is tried again.
  bool Pays(uint32_t missing) {
    const bool pays = cost_nanos_ <= kWorth * wait_nanos_ * missing || wait_nanos_ == 0;
    cost_nanos_ -= pays ? 0 : cost_nanos_ / kForget;
    return pays;
  }

  // Adds the time of a draft.
  void AddDraft(int64_t nanos) { Add(static_cast<double>(nanos), &cost_nanos_); }
  // Adds the wait for `missing` (> 0) experts of a layer without a draft.
  void AddWait(uint32_t missing, int64_t nanos) { Add(static_cast<double>(nanos) / missing, &wait_nanos_); }

 private:
  static constexpr double kWorth = 2;
  static constexpr double kWindow = 16;  // sliding means
  static constexpr double kForget = 64;

  static void Add(double value, double* mean) { *mean += *mean == 0 ? value : (value - *mean) / kWindow; }

  double cost_nanos_ = 0;  // mean time of a draft; 0: none measured
  double wait_nanos_ = 0;  // mean wait for one expert; 0: none measured
};

}  // namespace sluice::inferd
