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
#include "kernels/forwarding_backend.h"

namespace sluice::inferd {

class PartProfiler final : public ForwardingQueue {
 public:
  // `device` outlives this.
  explicit PartProfiler(Queue* device) : ForwardingQueue(device) {}

  // Sets the part of the following matrix products; only the caller knows it.
  void SetProducts(StepPart part) { products_ = part; }
  const PartWorks& works() const { return works_; }

  absl::Status Enqueue(const Operation& operation) override;

 private:
  const MonotonicClock clock_;
  StepPart products_ = StepPart::kAttention;
  PartWorks works_ = {};
};

// Returns the bytes read and the multiplications of an operation, without its time.
PartWork WorkOf(const Operation& operation);

}  // namespace sluice::inferd
