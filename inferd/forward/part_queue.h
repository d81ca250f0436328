// A queue before the device's that counts, for each part of the model, how long its operations took, what
// they read and what they multiplied. For a device that runs at the call, whose operations a clock beside the
// calls can time; what they read is reckoned from their arguments (with neurons left out by masks: as if all
// were read).
//
// Thread safety: as Queue; the engine thread's.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "inferd/api/part_work.h"
#include "kernels/backend.h"

namespace sluice {

class PartQueue final : public Queue {
 public:
  // `device` outlives this.
  explicit PartQueue(Queue* device) : device_(device) {}

  // The part that the matrix products which follow are of: only their caller knows.
  void SetProducts(StepPart part) { products_ = part; }
  const PartWorks& works() const { return works_; }

  absl::Status Enqueue(const Operation& operation) override;
  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override {
    return device_->Upload(source, bytes, destination);
  }
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override {
    return device_->Download(source, bytes, destination);
  }
  bool RunsAtCall() const override { return device_->RunsAtCall(); }
  absl::Status BeginGraph() override { return device_->BeginGraph(); }
  absl::Status EndGraph() override { return device_->EndGraph(); }
  Event Record() override { return device_->Record(); }
  bool IsDone(Event event) override { return device_->IsDone(event); }
  absl::Status Wait(Event event) override { return device_->Wait(event); }
  absl::StatusOr<double> Seconds(Event from, Event to) override { return device_->Seconds(from, to); }

 private:
  Queue* const device_;
  const MonotonicClock clock_;
  StepPart products_ = StepPart::kAttention;
  PartWorks works_ = {};
};

// What an operation reads and multiplies, without its time.
PartWork WorkOf(const Operation& operation);

}  // namespace sluice
