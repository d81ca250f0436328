// Interrupt: Ctrl-C (SIGINT) and SIGTERM as a flag for long work to poll, and as callbacks.
//
// The first signal requests a clean end; the second ends the process at once with exit code 1.
//
// Thread safety: thread-safe. Create it in main before any other thread: it blocks both signals in this and
// all later threads, and a thread of its own receives them.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace sluice::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return requested_.load(); }
  // Flag for library calls; lives as long as this object.
  const std::atomic<bool>* flag() const { return &requested_; }

  // OK, or CANCELLED("interrupted") once the signal came.
  absl::Status Check() const;

  // While a handler is set, every Ctrl-C (not SIGTERM) calls it first, on the signal's thread; if it returns
  // true, nothing else happens. Null removes the handler: once this returns, it neither runs nor will run.
  // The handler must not call this object.
  void SetSoftHandler(std::function<bool()> handler) LOCKS_EXCLUDED(mutex_);

  // Runs `call` on the signal's thread when a signal arrives, or at once if one has arrived. Returns a
  // handle.
  int OnRequest(std::function<void()> call) LOCKS_EXCLUDED(mutex_);
  // After this returns, the call neither runs nor will run.
  void Remove(int handle) LOCKS_EXCLUDED(mutex_);

 private:
  void Listen();
  bool Soften(uint32_t signal) LOCKS_EXCLUDED(mutex_);

  const int stop_fd_;    // eventfd: ends the thread
  const int signal_fd_;  // signalfd of both signals
  std::atomic<bool> requested_{false};
  absl::Mutex mutex_;
  std::unordered_map<int, std::function<void()>> calls_ GUARDED_BY(mutex_);
  int next_handle_ GUARDED_BY(mutex_) = 0;
  std::function<bool()> soft_handler_ GUARDED_BY(mutex_);
  std::thread thread_;  // set by the constructor, joined by the destructor
};

// ScopedInterruptCall: registers a call for its lifetime.
class ScopedInterruptCall {
 public:
  ScopedInterruptCall(Interrupt* interrupt, std::function<void()> call)
      : interrupt_(interrupt), handle_(interrupt->OnRequest(std::move(call))) {}
  ~ScopedInterruptCall() { interrupt_->Remove(handle_); }
  ScopedInterruptCall(const ScopedInterruptCall&) = delete;
  ScopedInterruptCall& operator=(const ScopedInterruptCall&) = delete;

 private:
  Interrupt* const interrupt_;
  const int handle_;
};

}  // namespace sluice::cli
