#include "inferd/calibrate/windows/calibration_stage.h"

#include <algorithm>

namespace sluice::inferd {

std::vector<CalibrationWindow> MakeWindows(const std::vector<int32_t>& tokens, uint32_t window,
                                           const std::vector<int32_t>& bos_ids) {
  std::vector<CalibrationWindow> windows;
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(begin);
    const auto end = tokens.begin() + static_cast<ptrdiff_t>(std::min(begin + window, tokens.size()));
    CalibrationWindow next;
    if (!bos_ids.empty()) next.input.push_back(bos_ids[0]);
    next.input.insert(next.input.end(), first, end - 1);
    // With a BOS every token of the window is a target; without one the first token has no context to predict
    // it from.
    next.targets.assign(bos_ids.empty() ? first + 1 : first, end);
    if (!next.input.empty()) windows.push_back(std::move(next));
  }
  return windows;
}

uint64_t WindowsFor(const std::vector<CalibrationWindow>& windows, uint64_t tokens) {
  uint64_t count = 0;
  for (uint64_t held = 0; count < windows.size() && held < tokens; ++count) {
    held += windows[count].input.size();
  }
  return std::max<uint64_t>(count, 1);
}

uint64_t PositionsOf(const std::vector<CalibrationWindow>& windows, uint64_t count) {
  uint64_t positions = 0;
  for (uint64_t i = 0; i < count; ++i) positions += windows[i].input.size();
  return positions;
}

}  // namespace sluice::inferd
