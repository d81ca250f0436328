// Memory shared by operations, since only one runs at a time: rows of the call, partial sums, and each
// worker's memory for its tile. Memory for one operation only belongs to that operation.
//
// Thread safety: thread-compatible; while tiles run, a worker uses its own WorkerSpace only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status.h"
#include "kernels/common/host_memory.h"

namespace sluice::cpu {

// Memory that a backend reserves at creation and keeps while it lives, so that no operation allocates.

class Scratch {
 public:
  // Returns zeroed memory for `count` values (for one if count is 0), on its own pages. Untouched pages cost
  // nothing. RESOURCE_EXHAUSTED naming `what` and the bytes.
  template <class T>
  absl::Status Reserve(uint64_t count, const char* what, T** out) {
    static_assert(std::is_trivially_copyable_v<T>, "nothing here is constructed or destroyed");
    ASSIGN_OR_RETURN(MappedArray array, MappedArray::Create(std::max<uint64_t>(count, 1) * sizeof(T), what));
    *out = reinterpret_cast<T*>(array.data());
    arrays_.push_back(std::move(array));
    return absl::OkStatus();
  }

 private:
  std::vector<MappedArray> arrays_;
};

}  // namespace sluice::cpu
