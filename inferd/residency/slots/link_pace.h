// Link time per byte.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>

#include "inferd/weights/fetch_queue.h"

namespace sluice::inferd {

class LinkPace {
 public:
  // `seconds_per_byte`: given value; 0: measured by `fetches`, which outlives this object.
  LinkPace(double seconds_per_byte, const FetchQueue* fetches) : said_(seconds_per_byte), fetches_(fetches) {}

  // 0: no value is given, and none was measured yet.
  double SecondsPerByte() const {
    if (said_ > 0) {
      return said_;
    }
    const uint64_t bytes = fetches_->bytes_link();
    return bytes == 0 ? 0 : fetches_->copy_seconds() / static_cast<double>(bytes);
  }

 private:
  const double said_;
  const FetchQueue* const fetches_;
};

}  // namespace sluice::inferd
