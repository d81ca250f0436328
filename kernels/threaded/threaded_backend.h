// A backend that computes on a thread of its own, in order: what the CPU has to do runs while its owner goes
// on and waits for another device.
//
// Memory is the host's, and the owner keeps the rules of a device that runs later (backend.h): it touches
// what is used by work in the queue once an event behind it is known to be done. Between two runs of work the
// thread looks for more for kLinger and sleeps then, and with it the workers of the backend behind.
//
// Thread safety: as Backend.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "kernels/backend.h"
#include "kernels/calls/kept_operation.h"

namespace sluice {

class ThreadedBackend final : public Backend, public Queue {
 public:
  // `behind` has its memory on the host and runs at the call.
  explicit ThreadedBackend(std::unique_ptr<Backend> behind);
  // What is in the queue is not run.
  ~ThreadedBackend() override;

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override;
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override;
  // This and Free() wait for the operation that runs: it looks buffers up.
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override;
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override;
  Queue& queue() override { return *this; }
  // The thread begins and ends steps by itself.
  void BeginStep() override {}
  void EndStep() override {}
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override;
  BackendCounters Counters() const override;
  std::string Describe() const override;

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override;
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override;
  absl::Status Enqueue(const Operation& operation) override;
  bool RunsAtCall() const override { return false; }
  Event Record() override { return {pushed_}; }
  bool IsDone(Event event) override { return ran_.load(std::memory_order_acquire) >= event.value; }
  absl::Status Wait(Event event) override;
  // From where the first operation between the two began to where the last ended: what the thread slept
  // before counts for nobody.
  absl::StatusOr<double> Seconds(Event from, Event to) override;

 private:
  static constexpr uint64_t kDepth = 64;  // operations in the queue; who has more waits
  static constexpr int64_t kLingerNanos = 50'000;

  // Of the queue; used again, so that nothing is allocated for what was as large before.
  struct Item {
    bool copies = false;  // Upload or Download, else `operation`
    KeptOperation operation;
    BufferRef place;
    std::vector<std::byte> data;  // of Upload
    uint64_t bytes = 0;
    void* destination = nullptr;  // of Download
  };

  void Run();
  Item* TakeNext();
  absl::Status RunItem(const Item& item);
  // The next item, once it has run; then it is filled and pushed.
  Item& Free();
  void Push();
  void Await(uint64_t number);
  void SetStepping(bool stepping);

  const MonotonicClock clock_;
  uint64_t pushed_ = 0;  // of the owner
  std::atomic<uint64_t> waits_{0};
  std::atomic<uint64_t> ran_{0};
  std::atomic<uint64_t> queued_{0};  // as pushed_, for the thread
  std::array<Item, kDepth> items_;   // by number; those in the queue are the thread's
  bool stepping_ = false;            // the backend behind, in the thread

  mutable Mutex behind_mutex_;  // held while the backend behind is used
  const std::unique_ptr<Backend> behind_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // the first
  // Of the last items, by number: when they began and ended.
  std::array<int64_t, kTimedEvents> began_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<int64_t, kTimedEvents> ended_ ABSL_GUARDED_BY(mutex_) = {};
  std::thread thread_;
};

}  // namespace sluice
