// Records the reports of a calibration.
//
// Thread safety: thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "inferd/api/control_api.h"

namespace sluice {

class CollectingCalibrationSink final : public inferd::CalibrationSink {
 public:
  // Cancels once this many units have been reported; 0: never.
  explicit CollectingCalibrationSink(int cancel_after = 0) : cancel_after_(cancel_after) {}

  void OnProgress(const inferd::CalibrationProgress& progress) override {
    MutexLock lock(&mutex_);
    ++reports_;
    last_ = progress;
  }
  bool Cancelled() override {
    MutexLock lock(&mutex_);
    return cancel_after_ > 0 && reports_ >= cancel_after_;
  }
  void OnFinished(const inferd::CalibrationSummary& summary) override {
    MutexLock lock(&mutex_);
    summary_ = summary;
    ended_ = true;
    changed_.SignalAll();
  }
  void OnError(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    error_ = status;
    ended_ = true;
    changed_.SignalAll();
  }
  absl::Status Await() {
    MutexLock lock(&mutex_);
    while (!ended_) changed_.Wait(&mutex_);
    return error_;
  }
  inferd::CalibrationSummary summary() {
    MutexLock lock(&mutex_);
    return summary_;
  }
  int reports() {
    MutexLock lock(&mutex_);
    return reports_;
  }

 private:
  const int cancel_after_;
  Mutex mutex_;
  CondVar changed_;
  int reports_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  inferd::CalibrationProgress last_ ABSL_GUARDED_BY(mutex_);
  inferd::CalibrationSummary summary_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
