// The scalar oracle: ARITHMETIC.md word for word, one thread, no tricks. Slow; for tests.
//
// Thread safety: as Backend (thread-compatible).
#ifndef SLUICE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define SLUICE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <string>

#include "kernels/common/cpu_backend.h"

namespace sluice {

class ReferenceBackend : public CpuBackend {
 public:
  explicit ReferenceBackend(const BackendLimits& limits) : CpuBackend(limits) {}
  std::string Describe() const override { return "device reference, scalar, 1 thread"; }

 protected:
  void Run(const EmbedCall& call) override;
  void Run(const NormCall& call) override;
  void Run(const MatMulCall& call) override;
  void Run(const RopeKvCall& call) override;
  void Run(const LatentKvCall& call) override;
  void Run(const AttentionCall& call) override;
  void Run(const HeadMatMulCall& call) override;
  void Run(const GatedDeltaCall& call) override;
  void Run(const SigmoidGateCall& call) override;
  void Run(const ScaleRowsCall& call) override;
  void Run(const RouterCall& call) override;
  void Run(const LeadCall& call) override;
  void Run(const MoeCall& call) override;
  void Run(const CombineCall& call) override;
  void Run(const TopLogitsCall& call) override;
};

}  // namespace sluice

#endif  // SLUICE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
