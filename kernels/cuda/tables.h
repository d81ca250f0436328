// What kernels need of a call beyond its launch arguments, copied to the device: row lists, pages, tables of
// experts. A ring of pinned memory and one of device memory of the same shape, in segments: a call's tables
// lie in one segment, and a segment is used again once everything enqueued while it was current has run.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice::cuda {

class Tables {
 public:
  // Segments of at least `bytes`. RESOURCE_EXHAUSTED naming the memory.
  static absl::StatusOr<std::unique_ptr<Tables>> Create(uint64_t bytes, cudaStream_t stream);
  // REQUIRES: nothing enqueued uses them.
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Begins a call's tables of up to `bytes` in all, every one rounded up to 16. May wait for work of long
  // ago. RESOURCE_EXHAUSTED if a segment is not that long.
  absl::Status Begin(uint64_t bytes);

  // Room for a table of `count` values, filled by the caller before Send(). `device`: where kernels find it.
  template <typename T>
  T* Take(uint64_t count, const T** device) {
    const uint64_t at = Take(count * sizeof(T));
    *device = reinterpret_cast<const T*>(device_ + at);
    return reinterpret_cast<T*>(host_ + at);
  }
  // The same with a copy of `values`; nullptr for none.
  template <typename T>
  const T* Put(absl::Span<const T> values) {
    const T* device = nullptr;
    if (!values.empty()) {
      std::memcpy(Take(values.size(), &device), values.data(), values.size() * sizeof(T));
    }
    return device;
  }

  // Enqueues the copy of what was taken since Begin().
  absl::Status Send();

 private:
  static constexpr int kSegments = 4;
  Tables(uint64_t segment_bytes, cudaStream_t stream) : segment_bytes_(segment_bytes), stream_(stream) {}
  uint64_t Take(uint64_t bytes);

  const uint64_t segment_bytes_;
  const cudaStream_t stream_;
  uint8_t* host_ = nullptr;
  uint8_t* device_ = nullptr;
  cudaEvent_t events_[kSegments] = {};
  int segment_ = 0;
  uint64_t begun_ = 0;  // offsets in the rings
  uint64_t next_ = 0;
};

}  // namespace sluice::cuda
