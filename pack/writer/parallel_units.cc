#include "pack/writer/parallel_units.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

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

namespace {

// Ten reports a second look smooth and cost the work nothing.
constexpr absl::Duration kReportEvery = absl::Milliseconds(100);

}  // namespace

ProgressMeter::ProgressMeter(const PackingProgressFn& progress, const std::atomic<bool>* cancel,
                             const char* stage, uint64_t total)
    : progress_(progress),
      cancel_(cancel),
      start_(SteadyNow()),
      total_(total),
      stage_(stage),
      next_report_(start_) {}

double ProgressMeter::seconds() const { return absl::ToDoubleSeconds(SteadyNow() - start_); }

absl::Status ProgressMeter::Add(uint64_t bytes, bool found) {
  MutexLock lock(&mutex_);
  done_ += bytes;
  // Units of an earlier run are found in almost no time; counting them would make the rate far too high and
  // the time left far too short.
  if (!found) worked_ += bytes;
  if (done_ >= total_ || SteadyNow() >= next_report_) Report();
  if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
    return absl::CancelledError("cancelled; running the same command again goes on from here");
  }
  return absl::OkStatus();
}

void ProgressMeter::SetStage(const char* stage) {
  MutexLock lock(&mutex_);
  stage_ = stage;
  Report();
}

void ProgressMeter::Report() {
  if (!progress_) return;
  PackingProgress report;
  report.stage = stage_;
  report.bytes_done = std::min(done_, total_);
  report.bytes_total = total_;
  const double elapsed = seconds();
  report.bytes_per_second = elapsed > 0 ? static_cast<double>(worked_) / elapsed : 0;
  if (report.bytes_per_second > 0) {
    report.seconds_left = static_cast<double>(total_ - report.bytes_done) / report.bytes_per_second;
  }
  progress_(report);
  next_report_ = SteadyNow() + kReportEvery;
}

}  // namespace sluice
