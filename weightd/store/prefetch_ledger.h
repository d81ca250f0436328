// PrefetchLedger: outcome of extents that a prefetch brought into memory. Uses happen in clients without a
// message, so the ledger notes the last known use and looks again later: a new use means that the prefetch
// was useful; an eviction without use means that it was wasted.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace sluice::weightd {

class PrefetchLedger {
 public:
  // Present state of an extent.
  struct View {
    uint64_t last_use = 0;  // any value that changes with every use
    bool resident = false;
  };

  uint64_t useful() const { return useful_; }
  uint64_t wasted() const { return wasted_; }
  size_t open() const { return entries_.size(); }

  // Adds an extent brought by a prefetch; `last_use` is the value before.
  void Filled(uint32_t extent_id, uint64_t last_use) {
    if (at_.try_emplace(extent_id, entries_.size()).second) {
      entries_.push_back({extent_id, last_use});
    } else {
      entries_[at_[extent_id]].last_use = last_use;
    }
  }
  // Notes that a demand found it in memory.
  void Demanded(uint32_t extent_id) {
    if (const auto found = at_.find(extent_id); found != at_.end()) {
      ++useful_;
      Erase(found->second);
    }
  }
  // Looks at up to `most` open extents, continuing after the last call's end.
  void Settle(size_t most, absl::FunctionRef<View(uint32_t extent_id)> look) {
    for (size_t left = std::min(most, entries_.size()); left > 0 && !entries_.empty(); --left) {
      next_ = next_ < entries_.size() ? next_ : 0;
      const Entry entry = entries_[next_];
      const View view = look(entry.extent_id);
      const bool used = view.last_use != entry.last_use;
      if (!used && view.resident) {
        ++next_;
        continue;
      }
      ++(used ? useful_ : wasted_);
      Erase(next_);
    }
  }
  // Resets the known last uses: something other than a use has changed these values.
  void Rebase(absl::FunctionRef<uint64_t(uint32_t extent_id)> last_use) {
    for (Entry& entry : entries_) {
      entry.last_use = last_use(entry.extent_id);
    }
  }

 private:
  struct Entry {
    uint32_t extent_id = 0;
    uint64_t last_use = 0;
  };
  void Erase(size_t index) {
    at_.erase(entries_[index].extent_id);
    if (index + 1 != entries_.size()) {
      entries_[index] = entries_.back();
      at_[entries_[index].extent_id] = index;
    }
    entries_.pop_back();
  }

  std::vector<Entry> entries_;
  absl::flat_hash_map<uint32_t, size_t> at_;  // index in entries_
  size_t next_ = 0;
  uint64_t useful_ = 0;
  uint64_t wasted_ = 0;
};

}  // namespace sluice::weightd
