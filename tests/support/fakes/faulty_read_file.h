// A ReadFile that answers from memory and misbehaves by script, as the kernel may.
//
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "weightd/store/read_file.h"

namespace sluice {

class FaultyReadFile final : public weightd::ReadFile {
 public:
  // Result of the next call: negative, it fails with this -errno; else it reads at most this many bytes.
  using Script = std::deque<int64_t>;

  // The page cache holds the first `cached_bytes`.
  FaultyReadFile(uint64_t file_bytes, Script script, uint64_t cached_bytes = 0)
      : file_bytes_(file_bytes), cached_bytes_(cached_bytes), script_(std::move(script)) {}

  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    int64_t most = static_cast<int64_t>(length);
    {
      MutexLock lock(&mutex_);
      ++calls_;
      aligned_ = aligned_ && offset % 4096 == 0;
      if (!script_.empty()) {
        most = script_.front();
        script_.pop_front();
      }
    }
    if (most < 0) {
      return most;
    }
    const uint64_t left = offset < file_bytes_ ? file_bytes_ - offset : 0;
    const uint64_t got = std::min({length, left, static_cast<uint64_t>(most)});
    Put(dest, got, offset);
    return static_cast<int64_t>(got);
  }
  uint64_t CopyCached(std::byte* dest, uint64_t length, uint64_t offset) override {
    const uint64_t got = offset < cached_bytes_ ? std::min(length, cached_bytes_ - offset) : 0;
    Put(dest, got, offset);
    return got;
  }
  std::string how() const override { return "O_DIRECT"; }

  int calls() const {
    MutexLock lock(&mutex_);
    return calls_;
  }
  bool aligned() const {
    MutexLock lock(&mutex_);
    return aligned_;
  }

 private:
  static void Put(std::byte* dest, uint64_t length, uint64_t offset) {
    std::vector<std::byte> bytes((length + 7) / 8 * 8);
    FakeExtentSource::FillBytes(offset, bytes);
    std::copy_n(bytes.data(), length, dest);
  }

  const uint64_t file_bytes_;
  const uint64_t cached_bytes_;
  mutable Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool aligned_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace sluice
