#include "weightd/core/pump_turn.h"

#include <algorithm>
#include <cstdint>

namespace sluice::weightd {

int PumpTurn(StoreCore* core, ReadInbox* inbox, const Clock& clock) {
  if (core->Pump(inbox->Take())) {
    return 0;
  }
  const int64_t deadline = core->NextDeadline();
  const bool no_reports = inbox->BeginSleep();
  if (!core->BeginSleep() || !no_reports) {
    return 0;
  }
  if (deadline == 0) {
    return -1;
  }
  const int64_t left = (deadline - clock.NowNanos()) / 1'000'000 + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace sluice::weightd
