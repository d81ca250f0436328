// Tunable: a value that may be changed while other threads read it.
//
// Thread safety: thread-safe; a reader sees a whole value, old or new.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sluice {

template <typename T>
class Tunable {
 public:
  Tunable(T value) : value_(value) {}
  Tunable(const Tunable& other) : value_(other.Get()) {}
  Tunable& operator=(const Tunable& other) { return *this = other.Get(); }
  Tunable& operator=(T value) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    value_ = value;
    return *this;
  }
  T Get() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return value_;
  }

 private:
  mutable absl::Mutex mutex_;
  T value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
