// Bytes of each size class that one engine step uses: the minimum and maximum of each session's latest looks,
// summed over sessions.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace sluice::weightd {

class StepUses {
 public:
  using Bytes = std::map<uint64_t, uint64_t>;  // by the extents' length

  // Notes a request of the session in `step`. When a step has ended by this, and the session is due for a
  // look, `measure` is called for the bytes that the step used.
  void Note(uint64_t session, uint64_t step, absl::FunctionRef<Bytes(uint64_t ended)> measure) {
    Record& record = records_[session];
    const uint64_t ended = std::exchange(record.step, step);
    if (ended != step && ended != 0 && record.ended++ % kStepsBetweenLooks == 0) {
      record.looks[record.count++ % record.looks.size()] = measure(ended);
    }
  }
  void Remove(uint64_t session) { records_.erase(session); }

  struct Range {
    uint64_t least = 0;
    uint64_t most = 0;
  };
  // Bytes in extents of this length that one step of every session uses; zero until there are enough looks.
  Range OfLength(uint64_t length) const {
    Range sum;
    for (const auto& [session, record] : records_) {
      if (record.count < record.looks.size()) {
        continue;
      }
      Range range{UINT64_MAX, 0};
      for (const Bytes& look : record.looks) {
        const auto found = look.find(length);
        const uint64_t bytes = found == look.end() ? 0 : found->second;
        range = {std::min(range.least, bytes), std::max(range.most, bytes)};
      }
      sum = {sum.least + range.least, sum.most + range.most};
    }
    return sum;
  }

 private:
  static constexpr uint64_t kStepsBetweenLooks = 4;  // a look reads one word per extent
  struct Record {
    uint64_t step = 0;
    uint64_t ended = 0;  // steps
    uint64_t count = 0;  // looks
    std::array<Bytes, 4> looks;
  };
  absl::flat_hash_map<uint64_t, Record> records_;
};

}  // namespace sluice::weightd
