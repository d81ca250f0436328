// Fair order between sessions that queue in one class: start-time fair queueing by bytes.
//
// Each session has a queue of its own, served in order. The session whose first item has the earliest virtual
// start is next; serving `cost` bytes moves that session's next start by as many. A session that was idle
// starts at the present: it has no claim to bandwidth left unused, and a long queue gives no claim either.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"

namespace sluice::weightd {

template <typename Item>
class FairQueue {
 public:
  // Minimum cost of an item, in bytes: items without bytes take turns too.
  static constexpr uint64_t kMinCost = 4096;

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  void PushBack(uint64_t session, Item item) {
    LineFor(session).items.push_back(std::move(item));
    ++size_;
  }
  void PushFront(uint64_t session, Item item) {
    LineFor(session).items.push_front(std::move(item));
    ++size_;
  }

  // REQUIRES: not empty().
  const Item& Front() const { return Next()->second.items.front(); }
  // Removes Front(); its session pays `cost` bytes.
  void PopFront(uint64_t cost) {
    const auto next = Next();
    now_ = next->second.start;
    next->second.start += std::max(cost, kMinCost);
    next->second.items.pop_front();
    --size_;
  }

  // Removes every item of the session for which `drop` is true.
  void RemoveIf(uint64_t session, absl::FunctionRef<bool(const Item&)> drop) {
    const auto line = lines_.find(session);
    if (line == lines_.end()) {
      return;
    }
    std::deque<Item>& items = line->second.items;
    const size_t before = items.size();
    items.erase(std::remove_if(items.begin(), items.end(), drop), items.end());
    size_ -= before - items.size();
  }
  // Removes a session and its debt.
  void Drop(uint64_t session) {
    const auto line = lines_.find(session);
    if (line != lines_.end()) {
      size_ -= line->second.items.size();
      lines_.erase(line);
    }
  }

 private:
  struct Line {
    std::deque<Item> items;
    uint64_t start = 0;  // virtual start of its first item
  };
  using Lines = std::map<uint64_t, Line>;

  Line& LineFor(uint64_t session) {
    Line& line = lines_[session];
    if (line.items.empty()) {
      line.start = std::max(line.start, now_);
    }
    return line;
  }
  typename Lines::iterator Next() { return Earliest(lines_); }
  typename Lines::const_iterator Next() const { return Earliest(lines_); }
  template <typename Map>
  static auto Earliest(Map& lines) {
    auto next = lines.end();
    for (auto line = lines.begin(); line != lines.end(); ++line) {
      if (!line->second.items.empty() && (next == lines.end() || line->second.start < next->second.start)) {
        next = line;
      }
    }
    return next;
  }

  Lines lines_;
  size_t size_ = 0;
  uint64_t now_ = 0;
};

}  // namespace sluice::weightd
