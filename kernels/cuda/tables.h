// Data of a call beyond its launch arguments, copied to the device: row lists, pages, tables of experts.
//
// A call's tables lie in one of two places. In a ring: one of pinned memory and one of device memory of the
// same shape, in segments; a call's tables lie in one segment, and a segment is used again once everything
// enqueued while it was current has run. Or, of calls whose launches are kept for a graph, in a region of
// their own by the order of the calls, so that the same calls find theirs at the same addresses again: the
// host has a copy of what lies there, and what is different is sent before the graph, through the ring.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/device/launch.h"

namespace sluice::cuda {

class Tables {
 public:
  // The event that changes the tables of a call: every step (positions, pages), or weights that come or go.
  // Each kind has a region, so that what stays does not lie between what is sent.
  enum class Change : uint8_t { kByStep = 0, kByWeights = 1 };
  // The origin of a call's tables: equal keys, equal tables. A number of 0 is no key.
  struct Key {
    uint64_t number = 0;
    std::array<const uint8_t*, 8> places = {};
    bool operator==(const Key& other) const = default;
  };
  struct Sizes {
    uint64_t call = 0;                  // the most of one call
    std::array<uint64_t, 2> kept = {};  // by Change: of the calls of a graph; more are handed over in pieces
  };

  // RESOURCE_EXHAUSTED naming the memory.
  static absl::StatusOr<std::unique_ptr<Tables>> Create(const Sizes& sizes, cudaStream_t stream);
  // REQUIRES: nothing enqueued uses them.
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Sets if calls that begin from here on are kept or sent at once. REQUIRES: nothing is kept.
  void KeepCalls(bool keep) { keeps_ = keep; }
  // True if the tables of any call fit where calls are kept; must be asked before each call.
  bool HasRoom() const;

  // Begins a call's tables of up to `bytes` in all, every one rounded up to 16. May wait for work of long
  // ago. RESOURCE_EXHAUSTED if a call may not have so many.
  absl::Status Begin(uint64_t bytes, Change change = Change::kByStep);

  // Room for a table of `count` values, filled by the caller before Send(). `device`: where kernels find it.
  template <typename T>
  T* Take(uint64_t count, const T** device) {
    const uint64_t at = Take(count * sizeof(T));
    *device = reinterpret_cast<const T*>(call_device_ + at);
    T* const host = reinterpret_cast<T*>(call_host_ + at);
    if (keeps_) {
      taken_.push_back({at, count, sizeof(T), EqualValues<T>});
    }
    return host;
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

  // Enqueues the copy of what was taken since Begin(); what is kept is noted where it is different, and that
  // it was made of `key`, if there is one.
  absl::Status Send(const Key& key);
  absl::Status Send() { return Send(Key()); }
  // Takes the tables of a call as they were kept at this place, if they were made of the same key: nothing is
  // compared or sent. Null if they were not, or calls are not kept; the call then begins as usual.
  const uint8_t* Reuse(const Key& key, Change change);
  // Forgets all keys.
  void Forget();
  // Enqueues the copies of what is different since the last time. The next call that is kept is a graph's
  // first.
  absl::Status SendKept();

 private:
  static constexpr int kSegments = 4;
  struct Keyed {
    Key key;
    uint64_t bytes = 0;
  };
  struct Region {
    std::vector<uint8_t> host;        // what the device has, or will have by SendKept()
    std::map<uint64_t, Keyed> keyed;  // calls' tables by their place
    uint8_t* device = nullptr;
    uint64_t next = 0;     // where the next call's tables go
    uint64_t changed = 0;  // [changed, changed_end): to be sent
    uint64_t changed_end = 0;
  };
  // A table of the running call, compared value by value: between members may be anything.
  struct Taken {
    uint64_t at = 0;
    uint64_t count = 0;
    uint64_t bytes = 0;  // of a value
    bool (*equal)(const void* a, const void* b) = nullptr;
  };

  Tables(uint64_t segment_bytes, cudaStream_t stream) : segment_bytes_(segment_bytes), stream_(stream) {}
  absl::Status CreateRing();
  absl::Status CreateRegion(uint64_t bytes, Region* region);
  uint64_t Take(uint64_t bytes);
  // Makes room in the current segment, or makes the next one current.
  absl::Status Reserve(uint64_t bytes);
  void Keep(const Taken& taken, Region* region);
  void NoteKey(const Key& key, Region* region);
  absl::Status SendChanges(Region* region);

  const uint64_t segment_bytes_;
  const cudaStream_t stream_;
  uint8_t* host_ = nullptr;  // the rings
  uint8_t* device_ = nullptr;
  cudaEvent_t events_[kSegments] = {};
  int segment_ = 0;
  uint64_t next_ = 0;  // offset in the rings

  bool keeps_ = false;
  std::array<Region, 2> regions_;
  std::vector<uint8_t> kept_call_;  // the running call's, before it is compared
  std::vector<Taken> taken_;

  // The running call.
  Region* region_ = nullptr;  // null: in the ring
  uint8_t* call_host_ = nullptr;
  uint8_t* call_device_ = nullptr;
  uint64_t used_ = 0;
};

}  // namespace sluice::cuda
