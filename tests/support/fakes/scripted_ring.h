// A ReadRing that answers from the files' own ReadAt(): the scripted faults of FaultyReadFile behind the
// uring engine.
//
// Thread safety: as ReadRing.
#pragma once

#include <vector>

#include "common/base/mutex.h"
#include "weightd/store/uring_reader.h"

namespace sluice {

class ScriptedRing final : public weightd::ReadRing {
 public:
  absl::Status AddFile(weightd::ReadFile* file) override {
    const MutexLock lock(&mutex_);
    files_.push_back(file);
    return absl::OkStatus();
  }
  void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) override {
    weightd::ReadFile* read = nullptr;
    {
      const MutexLock lock(&mutex_);
      read = files_[static_cast<size_t>(file)];
    }
    ended_.push_back({slot, read->ReadAt(dest, length, offset)});
  }
  absl::Status Start() override { return absl::OkStatus(); }
  // Completes the last read first: the kernel keeps no order either.
  absl::Status Wait(std::vector<weightd::RingCompletion>* completions) override {
    const MutexLock lock(&mutex_);
    while (ended_.empty() && !woken_) {
      wake_.Wait(&mutex_);
    }
    woken_ = false;
    completions->assign(ended_.rbegin(), ended_.rend());
    ended_.clear();
    return absl::OkStatus();
  }
  void Wake() override {
    const MutexLock lock(&mutex_);
    woken_ = true;
    wake_.Signal();
  }

 private:
  Mutex mutex_;
  CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<weightd::ReadFile*> files_ ABSL_GUARDED_BY(mutex_);
  std::vector<weightd::RingCompletion> ended_;  // the engine thread's
};

}  // namespace sluice
