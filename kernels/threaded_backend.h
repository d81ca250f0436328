// A backend that computes on its own thread, in order: CPU work runs while its owner goes on and waits for
// another device.
//
// Memory is host memory, and the owner follows the rules of a device that runs later (backend.h): it touches
// memory used by queued work only once an event after that work is known to be done. Between two runs of work
// the thread polls for kLinger, then sleeps together with the workers of the inner backend.
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
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kernels/backend.h"
#include "kernels/owned_operation.h"

namespace sluice {

class ThreadedBackend final : public Backend, public Queue {
 public:
  // The inner backend `inner` has its memory on the host and runs at the call.
  explicit ThreadedBackend(std::unique_ptr<Backend> inner);
  // Drops the queued operations.
  ~ThreadedBackend() override;

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override;
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override;
  // Import() and Free() wait for the running operation, which looks buffers up.
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override;
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override;
  Queue& queue() override { return *this; }
  // No effect: the thread begins and ends steps by itself.
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
  // Seconds from the begin of the first operation between the two events to the end of the last; the thread's
  // sleep before is not counted.
  absl::StatusOr<double> Seconds(Event from, Event to) override;

 private:
  static constexpr uint64_t kDepth = 64;  // maximum operations in the queue; further calls wait
  static constexpr int64_t kLingerNanos = 50'000;

  // An item of the queue. Items are reused, so that only items larger than before allocate.
  struct Item {
    bool copies = false;  // Upload or Download, else `operation`
    OwnedOperation operation;
    BufferRef place;
    std::vector<std::byte> data;  // source of an Upload
    uint64_t bytes = 0;
    void* destination = nullptr;  // for Download
  };

  void Run();
  Item* TakeNext();
  absl::Status RunItem(const Item& item);
  // Returns the next item once its old operation has run, to be filled and pushed.
  Item& Free();
  void Push();
  void Await(uint64_t number);
  void SetStepping(bool stepping);

  const MonotonicClock clock_;
  uint64_t pushed_ = 0;  // used by the owner
  std::atomic<uint64_t> waits_{0};
  std::atomic<uint64_t> ran_{0};
  std::atomic<uint64_t> queued_{0};  // copy of pushed_ for the thread
  std::array<Item, kDepth> items_;   // by number; queued items belong to the thread
  bool stepping_ = false;            // true while the inner backend is in a step; used by the thread

  mutable Mutex inner_mutex_;  // held while the inner backend is used
  const std::unique_ptr<Backend> inner_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // the first error
  // Begin and end times of the last items, by number.
  std::array<int64_t, kTimedEvents> began_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<int64_t, kTimedEvents> ended_ ABSL_GUARDED_BY(mutex_) = {};
  std::thread thread_;
};

}  // namespace sluice
