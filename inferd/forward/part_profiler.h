// A wrapper of the device's queue that counts, for each part of the model, the time, bytes read and
// multiplications of its operations. It is for a synchronous device, whose operations can be timed around the
// call; bytes are estimated from the arguments (neurons skipped by masks count as read).
//
// Thread safety: as Queue; belongs to the engine thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "inferd/api/engine_api.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class PartProfiler final : public Queue {
 public:
  // `device` outlives this.
  explicit PartProfiler(Queue* device) : device_(device) {}

  // Sets the part of the following matrix products; only the caller knows it.
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

// Returns the bytes read and the multiplications of an operation, without its time.
PartWork WorkOf(const Operation& operation);

}  // namespace sluice::inferd
