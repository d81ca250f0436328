// A BlockReader that fails as disks do, by seed, around a real or fake one.
//
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "weightd/store/block_reader.h"

namespace sluice {

enum class ReadFault : uint8_t {
  kNone,
  kShort,        // the file ends too early
  kEio,          // the disk gives up
  kEagain,       // the kernel returns EAGAIN until the engine fails
  kBitFlip,      // one bit of a chunk is wrong
  kMisdirected,  // right bytes of another position
  kStale,        // bytes that were there before a write that the disk lost
  kGone,         // the device was removed
  kStuck         // no answer until ReleaseStuck()
};

class FaultyBlockReader final : public weightd::BlockReader {
 public:
  // `rate`: the chance of a fault per job, drawn evenly from `kinds`, and of each further one in the same
  // job.
  FaultyBlockReader(std::unique_ptr<weightd::BlockReader> inner, uint64_t seed, double rate,
                    std::vector<ReadFault> kinds)
      : inner_(std::move(inner)), rate_(rate), kinds_(std::move(kinds)), random_(seed) {}

  // The next `count` jobs fail with `fault`, whatever the rate.
  void FailNext(ReadFault fault, int count) {
    MutexLock lock(&mutex_);
    forced_.assign(static_cast<size_t>(count), {fault});
  }
  // The next job meets all of these: faults that change bytes, then those that delay it, then those that end
  // it.
  void FailNextWith(std::vector<ReadFault> faults) {
    MutexLock lock(&mutex_);
    forced_.assign(1, std::move(faults));
  }
  void ReleaseStuck() {
    std::vector<Stuck> jobs;
    {
      MutexLock lock(&mutex_);
      jobs.swap(stuck_);
    }
    for (Stuck& stuck : jobs) {
      End(std::move(stuck.job), stuck.end);
    }
  }

  absl::StatusOr<int> Register(const std::string& path) override { return inner_->Register(path); }
  void SetSink(std::function<void(weightd::ReadResult)> sink) override {
    sink_ = sink;
    inner_->SetSink(std::move(sink));
  }
  void Promote(uint64_t tag) override { inner_->Promote(tag); }
  void Cancel(uint64_t tag) override { inner_->Cancel(tag); }
  void Abandon(uint64_t tag) override { inner_->Abandon(tag); }
  int64_t ProgressNanos(uint64_t tag) const override { return inner_->ProgressNanos(tag); }
  std::string Describe() const override { return absl::StrCat("faulty ", inner_->Describe()); }

  void Submit(weightd::ReadJob job) override {
    bool sticks = false;
    ReadFault end = ReadFault::kNone;
    for (const ReadFault fault : Draw()) {
      switch (fault) {
        case ReadFault::kBitFlip:
          job.check = [check = std::move(job.check), dest = job.dest](uint64_t offset,
                                                                      std::span<const std::byte> bytes) {
            dest[offset + bytes.size() / 2] ^= std::byte{0x10};
            return check ? check(offset, bytes) : absl::OkStatus();
          };
          break;
        case ReadFault::kStale:
          job.check = [check = std::move(job.check), dest = job.dest](uint64_t offset,
                                                                      std::span<const std::byte> bytes) {
            std::fill_n(dest + offset, bytes.size(), std::byte{0});
            return check ? check(offset, bytes) : absl::OkStatus();
          };
          break;
        case ReadFault::kMisdirected:
          job.offset = job.offset >= 4096 ? job.offset - 4096 : job.offset + 4096;
          break;
        case ReadFault::kStuck:
          sticks = true;
          break;
        default:
          end = end == ReadFault::kNone ? fault : end;
      }
    }
    if (sticks) {
      MutexLock lock(&mutex_);
      stuck_.push_back({std::move(job), end});
      return;
    }
    End(std::move(job), end);
  }

 private:
  struct Stuck {
    weightd::ReadJob job;
    ReadFault end;
  };

  std::vector<ReadFault> Draw() {
    MutexLock lock(&mutex_);
    std::vector<ReadFault> faults;
    if (!forced_.empty()) {
      faults = std::move(forced_.front());
      forced_.pop_front();
      return faults;
    }
    while (!kinds_.empty() && std::uniform_real_distribution<>(0, 1)(random_) < rate_) {
      faults.push_back(kinds_[random_() % kinds_.size()]);
    }
    return faults;
  }
  void End(weightd::ReadJob job, ReadFault fault) {
    switch (fault) {
      case ReadFault::kShort:
        return Fail(job, weightd::ReadOutcome::kEndOfFile,
                    absl::DataLossError("injected: the file ends early"));
      case ReadFault::kEio:
        return Fail(job, weightd::ReadOutcome::kIoError, absl::DataLossError("injected: EIO"));
      case ReadFault::kGone:
        return Fail(job, weightd::ReadOutcome::kIoError, absl::UnavailableError("injected: ENODEV"));
      case ReadFault::kEagain:
        return Fail(job, weightd::ReadOutcome::kIoError, absl::UnavailableError("injected: EAGAIN"));
      default:
        inner_->Submit(std::move(job));
    }
  }
  void Fail(const weightd::ReadJob& job, weightd::ReadOutcome outcome, absl::Status status) {
    weightd::ReadResult result;
    result.tag = job.tag;
    result.outcome = outcome;
    result.status = std::move(status);
    sink_(std::move(result));
  }

  const std::unique_ptr<weightd::BlockReader> inner_;
  const double rate_;
  const std::vector<ReadFault> kinds_;
  std::function<void(weightd::ReadResult)> sink_;
  Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<ReadFault>> forced_ ABSL_GUARDED_BY(mutex_);  // by job
  std::vector<Stuck> stuck_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
