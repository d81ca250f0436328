// Host memory that copies read from, page-locked for the copy engines: by a thread of its own, since locking
// a segment takes tens of milliseconds and holds nobody up. Memory that is not locked yet, or that the system
// refuses to lock, is copied through pinned memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/types/span.h"

namespace sluice::cuda {

class Sources {
 public:
  Sources();
  // Unlocks what is locked. REQUIRES: no copy reads any of it.
  ~Sources();
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;

  // Nothing is locked before this: from a device's context on.
  void Start(int device);

  // As Copier::AddSource() and RemoveSource().
  void Add(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner);
  void Remove(const std::byte* base);

  // True if [data, data + bytes) is locked; it stays so until it is removed.
  bool IsLocked(const std::byte* data, uint64_t bytes) const;
  uint64_t locked_bytes() const;
  // Until what was added or removed so far is locked or unlocked; for tests.
  void WaitIdle();

 private:
  enum class State : uint8_t { kWaiting, kLocking, kLocked, kRefused };
  struct Source {
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
    State state = State::kWaiting;
    bool removed = false;
  };
  void Run();
  // The source to lock or unlock next; end() if there is none.
  std::map<const std::byte*, Source>::iterator Next();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::byte*, Source> sources_;  // by base; guarded by mutex_, as the next
  int device_ = -1;                             // not started
  bool stop_ = false;
  std::thread thread_;  // const after construction
};

}  // namespace sluice::cuda
