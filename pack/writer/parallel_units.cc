#include "pack/writer/parallel_units.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace sluice {
namespace {

// More workers only share the disk; each also costs memory (PackJob::worker_bytes()).
constexpr uint32_t kMaxWorkers = 8;

// The first error of several threads; the others stop at it, and their own errors are mostly its
// consequences.
class FirstError {
 public:
  void Report(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    failed_.store(true);
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
  }
  bool any() const { return failed_.load(); }
  absl::Status status() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return status_;
  }

 private:
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

uint32_t WorkerCount(uint32_t requested, uint32_t units) {
  uint32_t count = requested;
  if (count == 0) {
    cpu_set_t set;
    count = sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
  }
  return std::clamp(count, 1u, std::min(kMaxWorkers, std::max(units, 1u)));
}

absl::Status RunUnits(uint32_t workers, uint32_t units,
                      const std::function<absl::Status(uint32_t worker, uint32_t unit)>& work) {
  std::atomic<uint32_t> next{0};
  FirstError error;
  const auto run = [&](uint32_t worker) {
    while (!error.any()) {
      const uint32_t unit = next.fetch_add(1);
      if (unit >= units) return;
      const absl::Status status = work(worker, unit);
      if (!status.ok()) error.Report(status);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t worker = 1; worker < workers; ++worker) threads.emplace_back(run, worker);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return error.status();
}

}  // namespace sluice
