// The scalar oracle: ARITHMETIC.md word for word, one thread, no tricks. Slow; for tests.
//
// Thread safety: as Backend (thread-compatible).
#pragma once

#include <string>

#include "kernels/immediate_backend.h"

namespace sluice {
namespace reference {

// Selects this backend's functions: Run(device, call) for each operation of ops.h.
struct Device {};
#define SLUICE_REFERENCE_RUN(Name) void Run(Device&, const Name##Call& call);
SLUICE_OPERATIONS(SLUICE_REFERENCE_RUN)
#undef SLUICE_REFERENCE_RUN

}  // namespace reference

class ReferenceBackend : public ImmediateBackend {
 public:
  explicit ReferenceBackend(const BackendLimits& limits) : ImmediateBackend(limits) {}
  absl::Status Enqueue(const Operation& operation) override { return Compute(operation, device_); }
  std::string Describe() const override { return "device reference, scalar, 1 thread"; }

 private:
  reference::Device device_;
};

}  // namespace sluice
