// A test device that computes later. It copies operations when they are enqueued; its own thread runs them on
// the inner backend, in order, after random delays: at once, some microseconds later, or only when the host
// waits.
//
// The host can access staging memory only, and reads poison there until it knows that the writer is done.
// Accesses that are too early make the queue's error, which names the pending operation: a buffer freed,
// staging memory read or changed, weights overwritten before an operation read them.
//
// Thread safety: as Backend.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
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
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/calls.h"
#include "kernels/resolver.h"

namespace sluice {

// The buffers of a delayed backend: the bytes that each operation reads and writes, and the bytes that the
// host may access. Staging memory has two copies, as with a link between host and device.

// Bytes [begin, end) of a buffer.
struct Access {
  BufferId buffer = kNoBuffer;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool write = false;
  bool Overlaps(const Access& other) const {
    return buffer == other.buffer && begin < other.end && other.begin < end;
  }
};

class DelayedMemory final : public Addresses {
 public:
  enum class Kind : uint8_t {
    kDevice,   // visible to the device only
    kStaging,  // the host has a copy of its own
    kOthers,   // imported, or shared with another process: others write there
  };

  // Adds a buffer of the inner backend, whose memory begins at `device`.
  void Add(BufferId buffer, std::byte* device, uint64_t bytes, Kind kind);
  void Remove(BufferId buffer) { buffers_[buffer - 1] = {}; }
  bool Lives(BufferId buffer) const {
    return buffer != kNoBuffer && buffer <= buffers_.size() && buffers_[buffer - 1].device != nullptr;
  }
  Kind kind(BufferId buffer) const { return buffers_[buffer - 1].kind; }

  // Returns the accesses noted since the last call, and begins to note anew.
  std::vector<Access> TakeAccesses();

  // Returns the host's copy of staging memory; nullptr for other memory, or outside.
  std::byte* Host(BufferRef ref, uint64_t bytes) const;
  std::byte* Host(const Access& access) const {
    return Host({access.buffer, access.begin}, access.end - access.begin);
  }
  std::byte* Device(const Access& access) const { return buffers_[access.buffer - 1].device + access.begin; }

  const std::byte* Read(BufferRef ref, uint64_t bytes) const override;
  std::byte* Write(BufferRef ref, uint64_t bytes) const override;
  absl::Status Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const override;

 private:
  struct Buffer {
    std::byte* device = nullptr;  // nullptr: freed
    uint64_t bytes = 0;
    Kind kind = Kind::kDevice;
    std::unique_ptr<std::byte[]> host;
  };
  const Buffer* Find(BufferRef ref, uint64_t bytes) const;

  std::vector<Buffer> buffers_;  // buffers_[id - 1]
  mutable std::vector<Access> noted_accesses_;
};

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
