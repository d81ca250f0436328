#include "common/transfer/copier.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<Slab>> HostCopier::Open(UniqueFd fd, const SlabHandle& handle) {
  if (handle.device != DeviceUuid{}) {
    return absl::InvalidArgumentError("slab: a memory file of the host that is said to lie on a device");
  }
  return HostSlab::Map(fd.get(), handle.bytes);
}

absl::Status HostCopier::Begin(uint64_t /*tag*/, const TransferPlan& plan, const PlanChunk& chunk,
                               Slab* slab) {
  CopyPlanChunk(plan, chunk, static_cast<HostSlab*>(slab)->data());
  return absl::OkStatus();
}

}  // namespace sluice
