#include "pack/writer/progress_meter.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace sluice {
namespace {

// Ten reports a second look smooth and cost the work nothing.
constexpr absl::Duration kReportEvery = absl::Milliseconds(100);

}  // namespace

ProgressMeter::ProgressMeter(const PackingProgressFn& progress, const std::atomic<bool>* cancel,
                             const char* stage, uint64_t total)
    : progress_(progress),
      cancel_(cancel),
      start_(absl::Now()),
      total_(total),
      stage_(stage),
      next_report_(start_) {}

double ProgressMeter::seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

absl::Status ProgressMeter::Add(uint64_t bytes, bool found) {
  MutexLock lock(&mutex_);
  done_ += bytes;
  // Units of an earlier run are found in almost no time; counting them would make the rate far too high and
  // the time left far too short.
  if (!found) worked_ += bytes;
  if (done_ >= total_ || absl::Now() >= next_report_) Report();
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
  next_report_ = absl::Now() + kReportEvery;
}

}  // namespace sluice
