// Allocates the pages of fresh segments ahead of the reader: a first touch costs more than the read that
// fills it (1.6 GB/s against 1.8), so a few threads do it, in 2 MiB ranges that become huge pages where the
// kernel agrees (8 GB/s and more). A range with a page that is just being read into cannot become one; it is
// retried later. Readers that are faster than these threads, as those of cached files are, populate by
// Ensure() what they are about to write: pages that they touched first would be allocated twice, and copied.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/protocol/shared_memory.h"

namespace sluice::weightd {

// Allocates the pages of [start, start + bytes) of a shared mapping now, huge ones where whole 2 MiB ranges
// allow. Best effort: the first touch faults in the rest. Content is kept.
void Populate(std::byte* start, uint64_t bytes);

class Prefaulter {
 public:
  explicit Prefaulter(int threads);
  // Drops ranges that have not begun.
  ~Prefaulter();

  // Populates all of `memory`, front to back, and keeps the mapping alive until then.
  void Add(std::shared_ptr<const SharedMemory> memory);

  // Populates the ranges around [start, start + bytes) on the calling thread, unless they have their pages;
  // waits for those that other threads have begun. Costs nothing once all of the segments have theirs.
  void Ensure(const std::byte* start, uint64_t bytes);

  // Waits until everything added so far has its pages, huge or not; for tests and benchmarks.
  void WaitIdle();

 private:
  struct Range {
    std::shared_ptr<const SharedMemory> memory;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    int tries = 0;  // number of tries so far

    bool Overlaps(const std::byte* start, uint64_t length) const {
      const std::byte* const own = memory->map.data() + offset;
      return start < own + bytes && own < start + length;
    }
  };
  // A range that has its pages, but small ones. It does not keep a segment that is dropped meanwhile.
  struct Retry {
    std::weak_ptr<const SharedMemory> memory;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    int tries = 0;
    std::chrono::steady_clock::time_point due;
  };
  void Run();
  // Waits until ranges_ is not empty. False once the thread is to stop.
  bool AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Populates or collapses the range, without the lock.
  void Process(Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  std::deque<Range> ranges_ ABSL_GUARDED_BY(mutex_);
  std::deque<Retry> again_ ABSL_GUARDED_BY(mutex_);  // by `due`
  std::list<Range> running_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> unpopulated_{0};  // ranges without pages: waiting or running, never tried before
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // const after construction
};

}  // namespace sluice::weightd
