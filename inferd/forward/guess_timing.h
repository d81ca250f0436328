// Whether guessing the tokens that follow (forward.h) is worth its time: most of it must pass while experts
// are waited for. With a wide vocabulary or few missing experts the layer would wait for the guess instead.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

namespace sluice {

class GuessTiming {
 public:
  // By what both took lately: a guess may take kWorth times the wait, since a right one saves computing an
  // attention later and lets the disk read in a time when it would rest. True until both were seen. A no
  // makes the next yes likelier, so that a guess which was held up once is tried again.
  bool Pays(uint32_t missing) {
    const bool pays = cost_nanos_ <= kWorth * wait_nanos_ * missing || wait_nanos_ == 0;
    cost_nanos_ -= pays ? 0 : cost_nanos_ / kForget;
    return pays;
  }

  // A guess took so long.
  void AddGuess(int64_t nanos) { Add(static_cast<double>(nanos), &cost_nanos_); }
  // So long was waited for `missing` (> 0) experts of a layer, with nothing guessed meanwhile.
  void AddWait(uint32_t missing, int64_t nanos) { Add(static_cast<double>(nanos) / missing, &wait_nanos_); }

 private:
  static constexpr double kWorth = 2;
  static constexpr double kWindow = 16;  // sliding means
  static constexpr double kForget = 64;

  static void Add(double value, double* mean) { *mean += *mean == 0 ? value : (value - *mean) / kWindow; }

  double cost_nanos_ = 0;  // of a guess; 0: none was seen
  double wait_nanos_ = 0;  // for one expert; 0: none was seen
};

}  // namespace sluice
