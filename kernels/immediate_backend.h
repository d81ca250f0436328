// The shared base of the CPU backends: host memory behind handles, arguments checked and resolved before
// anything runs, and the trivial queue of a device that has computed when the call returns.
//
// Thread safety: as Backend (thread-compatible, one owner thread).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "kernels/backend.h"
#include "kernels/calls.h"
#include "kernels/host_memory.h"

namespace sluice {

// A derived backend implements Enqueue() with Compute().
class ImmediateBackend : public Backend, public Queue {
 public:
  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override;
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override;
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override;
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override;
  Queue& queue() override { return *this; }
  void BeginStep() override {}
  void EndStep() override {}
  BackendCounters Counters() const override;

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override;
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override;
  bool RunsAtCall() const override { return true; }
  Event Record() override;
  // True for every recorded point, because work has run when its call returns.
  bool IsDone(Event event) override { return event.value <= recorded_; }
  absl::Status Wait(Event) override { return absl::OkStatus(); }
  absl::StatusOr<double> Seconds(Event from, Event to) override;

 protected:
  explicit ImmediateBackend(const BackendLimits& limits) : limits_(limits), scratch_(limits) {}

  // Checks and resolves the operation, then calls Run(device, call), the device's function for that
  // operation.
  template <class Device>
  absl::Status Compute(const Operation& operation, Device& device) {
    return std::visit(
        [&](const auto* args) -> absl::Status {
          const auto call = Resolve(Resolver(memory_, limits_, scratch_, NameOf(*args)), *args);
          if (!call.ok()) {
            return call.status();
          }
          const int64_t start = clock_.NowNanos();
          Run(device, *call);
          CountNanos(clock_.NowNanos() - start);
          return absl::OkStatus();
        },
        operation);
  }

 private:
  // Written by the owner thread alone.
  void CountNanos(int64_t more) {
    kernel_nanos_.store(kernel_nanos_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  const MonotonicClock clock_;
  std::atomic<int64_t> kernel_nanos_{0};
  const BackendLimits limits_;
  HostMemory memory_;
  CallScratch scratch_;
  uint64_t recorded_ = 0;
  std::array<int64_t, kTimedEvents> times_ = {};  // by event value
};

}  // namespace sluice
