// A BlockReader without files: jobs wait until the test completes them, or complete on Submit.
//
// Thread safety: thread-safe; the sink runs on the thread that completes a job.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "weightd/store/block_reader.h"

namespace sluice {

class FakeBlockReader final : public weightd::BlockReader {
 public:
  enum class Mode { kManual, kImmediate };
  explicit FakeBlockReader(Mode mode) : mode_(mode) {}

  absl::StatusOr<int> Register(const std::string&) override { return 0; }
  void SetSink(std::function<void(weightd::ReadResult)> sink) override { sink_ = std::move(sink); }
  void Submit(weightd::ReadJob job) override {
    const uint64_t tag = job.tag;
    {
      MutexLock lock(&mutex_);
      order_.push_back(tag);
      jobs_[tag] = std::move(job);
    }
    if (mode_ == Mode::kImmediate) {
      Complete(tag);
    }
  }
  void Promote(uint64_t tag) override {
    MutexLock lock(&mutex_);
    promoted_.push_back(tag);
  }
  void Cancel(uint64_t tag) override {
    if (!stuck_) {
      CompleteAs(tag, weightd::ReadOutcome::kCancelled, absl::OkStatus());
    }
  }
  // Makes reads ignore cancels: they have all started and end when the test says so.
  void IgnoreCancels() { stuck_ = true; }
  // Destination of a waiting read, null if it does not wait.
  const std::byte* DestOf(uint64_t tag) const {
    MutexLock lock(&mutex_);
    const auto found = jobs_.find(tag);
    return found == jobs_.end() ? nullptr : found->second.dest;
  }
  // ReadJob::past_cache of a waiting read.
  bool PastCacheOf(uint64_t tag) const {
    MutexLock lock(&mutex_);
    return jobs_.at(tag).past_cache;
  }
  int64_t ProgressNanos(uint64_t tag) const override {
    MutexLock lock(&mutex_);
    const auto found = progress_.find(tag);
    return found == progress_.end() ? 0 : found->second;
  }
  // Lets a waiting read look as if bytes of it had arrived at `now`.
  void Progress(uint64_t tag, int64_t now) {
    MutexLock lock(&mutex_);
    progress_[tag] = now;
  }
  std::string Describe() const override { return "fake"; }

  // Writes the right bytes, has them checked, and reports.
  void Complete(uint64_t tag) {
    weightd::ReadJob job;
    if (!Take(tag, &job)) {
      return;
    }
    FakeExtentSource::FillBytes(job.offset, {job.dest, job.length});
    weightd::ReadResult result;
    result.tag = tag;
    result.bytes_read = job.length;
    if (job.check) {
      result.status = job.check(0, {job.dest, job.length});
    }
    result.outcome = result.status.ok() ? weightd::ReadOutcome::kOk : weightd::ReadOutcome::kCorrupt;
    sink_(std::move(result));
  }
  void CompleteAs(uint64_t tag, weightd::ReadOutcome outcome, absl::Status status) {
    weightd::ReadJob job;
    if (!Take(tag, &job)) {
      return;
    }
    weightd::ReadResult result;
    result.tag = tag;
    result.outcome = outcome;
    result.status = std::move(status);
    sink_(std::move(result));
  }
  // Completes all waiting jobs, in the order of submission.
  void CompleteAll() {
    for (uint64_t tag : waiting()) {
      Complete(tag);
    }
  }

  std::vector<uint64_t> waiting() const {
    MutexLock lock(&mutex_);
    std::vector<uint64_t> tags;
    for (uint64_t tag : order_) {
      if (jobs_.contains(tag) && std::find(tags.begin(), tags.end(), tag) == tags.end()) {
        tags.push_back(tag);
      }
    }
    return tags;
  }
  size_t submitted() const {
    MutexLock lock(&mutex_);
    return order_.size();
  }
  std::vector<uint64_t> promoted() const {
    MutexLock lock(&mutex_);
    return promoted_;
  }

 private:
  bool Take(uint64_t tag, weightd::ReadJob* job) {
    MutexLock lock(&mutex_);
    auto found = jobs_.find(tag);
    if (found == jobs_.end()) {
      return false;
    }
    *job = std::move(found->second);
    jobs_.erase(found);
    return true;
  }

  const Mode mode_;
  bool stuck_ = false;
  std::function<void(weightd::ReadResult)> sink_;
  mutable Mutex mutex_;
  std::map<uint64_t, weightd::ReadJob> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> order_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> promoted_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, int64_t> progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
