// Puts the stamps of several sessions on one axis, weightd's own clock of decisions.
//
// Each session stamps uses in its own steps, without telling weightd. Whenever weightd decides something it
// notes every session's latest stamp: a stamp at or below that one was given before that decision, one above
// it after.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice {

// When an extent was last used: by the number of the decision before which it was, then by the session's
// stamp. Ordered; of equal clocks, stamps of different sessions cannot be told apart and count as they are.
struct UseKey {
  uint64_t clock = 0;
  uint64_t stamp = 0;
  auto operator<=>(const UseKey&) const = default;
};

class StepTimeline {
 public:
  // The session's latest stamp is `stamp` at decision `clock`; clocks never fall. A stamp that falls (a
  // client's mistake) is ignored.
  void Note(uint64_t stamp, uint64_t clock) {
    if (marks_.empty() ? stamp == 0 : stamp <= marks_.back().stamp) {
      return;
    }
    if (!marks_.empty() && marks_.back().clock == clock) {
      marks_.back().stamp = stamp;
      return;
    }
    if (marks_.size() >= kMaxMarks) {
      Thin();
    }
    marks_.push_back(Mark{stamp, clock});
  }

  // The decision before which `stamp` was given; `now` when it is newer than all that was noted.
  uint64_t ClockOf(uint64_t stamp, uint64_t now) const {
    auto at = std::lower_bound(marks_.begin(), marks_.end(), stamp,
                               [](const Mark& mark, uint64_t value) { return mark.stamp < value; });
    return at == marks_.end() ? now : at->clock;
  }

 private:
  struct Mark {
    uint64_t stamp;
    uint64_t clock;
  };
  // Enough for the uses between an extent's fill and its eviction to keep their order in any cache of that
  // many extents; 256 KiB a session.
  static constexpr size_t kMaxMarks = 16384;

  // Drops every other mark of the older half: old uses move a little later, their order stays.
  void Thin() {
    const size_t half = marks_.size() / 2;
    size_t to = 0;
    for (size_t from = 1; from < half; from += 2) {
      marks_[to++] = marks_[from];
    }
    marks_.erase(marks_.begin() + static_cast<ptrdiff_t>(to), marks_.begin() + static_cast<ptrdiff_t>(half));
  }

  std::vector<Mark> marks_;  // both ascending
};

}  // namespace sluice
