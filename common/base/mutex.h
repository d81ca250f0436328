// Locks: mutex, scoped lock and condition variable with thread-safety annotations, and a value that may
// change while others read it.
//
// Thread safety: thread-safe by design.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sluice {

// Mutex, scoped lock and condition variable with the names of Abseil's and Clang's thread-safety annotations.
//
// The base is std::mutex and not absl::Mutex: Debian's Abseil is built without TSan's hooks, so every
// absl::Mutex makes the gRPC-free libraries report false races. TSan follows pthread's mutex.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  // Wakes may be spurious: wait in a loop on the condition.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False if `timeout` passed without a wake.
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_for(lock, timeout);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// Tunable: a value that may be changed while other threads read it.
//
// Thread safety: thread-safe; a reader sees a whole value, old or new.

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
