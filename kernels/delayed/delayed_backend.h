#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "kernels/backend.h"
#include "kernels/calls/calls.h"
#include "kernels/delayed/delayed_memory.h"

namespace sluice {

struct DelayOptions {
  uint64_t seed = 1;
  uint32_t max_delay_us = 40;  // maximum delay of an operation that is not held
  uint32_t max_hold_us = 500;  // maximum delay of an operation that is held until a wait
  bool hold = false;           // holds every operation until a wait
};

class DelayedBackend final : public Backend, public Queue {
 public:
  // The inner backend `inner` has its memory on the host and runs at the call.
  DelayedBackend(std::unique_ptr<Backend> inner, const BackendLimits& limits, const DelayOptions& options);
  ~DelayedBackend() override;

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override;
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override;
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override;
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override;
  Queue& queue() override { return *this; }
  void BeginStep() override;
  void EndStep() override;
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override;
  BackendCounters Counters() const override;
  std::string Describe() const override;

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override;
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override;
  absl::Status Enqueue(const Operation& operation) override;
  bool RunsAtCall() const override { return false; }
  Event Record() override;
  bool IsDone(Event event) override;
  absl::Status Wait(Event event) override;
  absl::StatusOr<double> Seconds(Event from, Event to) override;

 private:
  struct Item;

  void Run();
  void AwaitTurn(const Item& item, uint64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RunItem(Item* item);
  uint64_t Push(std::unique_ptr<Item> item);
  void CaptureHostBytes(Item* item) const;
  void Poison(const Item& item);
  void MarkDone(uint64_t index);
  void Publish(const Item& item) const;
  // True if an operation that is not known to be done writes there.
  bool IsWritten(const Access& access) const { return FindConflict(access, /*reads=*/false) != nullptr; }
  // The operation that conflicts with a host access now; null: none. `reads`: readers conflict too.
  const Item* FindConflict(const Access& access, bool reads) const;
  void Fail(absl::Status status);
  uint64_t Ran();
  void Drain();

  const std::unique_ptr<Backend> inner_;
  const BackendLimits limits_;
  const DelayOptions options_;
  const MonotonicClock clock_;
  DelayedMemory memory_;
  CallScratch scratch_;
  std::atomic<uint64_t> waits_{0};

  // Items by index, used by the enqueueing thread only; the first is known_ + 1.
  std::deque<std::shared_ptr<Item>> pending_;
  uint64_t pushed_ = 0;
  uint64_t known_ = 0;  // known to be done

  Mutex inner_mutex_;  // held while the inner backend is used
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Item>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t ran_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;  // index of the item that the host waits for
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::array<int64_t, kTimedEvents> times_ ABSL_GUARDED_BY(mutex_) = {};
  std::mt19937_64 random_;  // used by the running thread
  std::thread thread_;
};

}  // namespace sluice
