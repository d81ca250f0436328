// Maps the stamps of several sessions to one axis, weightd's own clock of decisions.
//
// Each session stamps uses with its own steps, without a message to weightd. At each decision weightd notes
// every session's latest stamp: a stamp at or below that one was given before the decision, one above it
// after.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice::weightd {

// Time of an extent's last use: the number of the decision before which it was, then the session's stamp.
// Ordered; with equal clocks, stamps of different sessions are compared as plain numbers.
struct UseKey {
  uint64_t clock = 0;
  uint64_t stamp = 0;
  auto operator<=>(const UseKey&) const = default;
};

class StepTimeline {
 public:
  // Notes the session's latest stamp `stamp` at decision `clock`; clocks never fall. A stamp that falls (a
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

  // The decision before which `stamp` was given; `now` if it is newer than every noted stamp.
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
  // many extents; 256 KiB per session.
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

}  // namespace sluice::weightd
