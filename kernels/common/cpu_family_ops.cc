// CpuBackend's operations that only some families need: arguments to resolved calls.
#include "common/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/common/resolve.h"

namespace sluice {

absl::Status CpuBackend::HeadMatMul(const HeadMatMulArgs&) {
  return Resolver(memory_, "HeadMatMul").Unimplemented("this device has no kernel for it");
}

absl::Status CpuBackend::SigmoidGate(const SigmoidGateArgs&) {
  return Resolver(memory_, "SigmoidGate").Unimplemented("this device has no kernel for it");
}

absl::Status CpuBackend::ScaleRows(const ScaleRowsArgs&) {
  return Resolver(memory_, "ScaleRows").Unimplemented("this device has no kernel for it");
}

absl::Status CpuBackend::LatentKvWrite(const LatentKvArgs&) {
  return Resolver(memory_, "LatentKvWrite").Unimplemented("this device has no kernel for it");
}

absl::Status CpuBackend::GatedDelta(const GatedDeltaArgs&) {
  return Resolver(memory_, "GatedDelta").Unimplemented("this device has no kernel for it");
}

}  // namespace sluice
