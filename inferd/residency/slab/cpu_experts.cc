#include "inferd/residency/slab/cpu_experts.h"

#include "inferd/weights/extent_leases.h"

namespace sluice::inferd {

bool CpuExperts::Lease(uint32_t demand, uint32_t layer, uint32_t expert, uint64_t step) {
  Expert& entry = experts_[demand];
  const ExtentRange range = pack_.expert_extents(layer, expert);
  if (!LeaseExtents(range, step, client_, entry.leases.data())) {
    return false;
  }
  entry.layer = layer;
  entry.expert = expert;
  entry.leased = true;
  held_ += range.count;
  return true;
}

void CpuExperts::Release(uint32_t demand, uint64_t step) {
  Expert& entry = experts_[demand];
  if (!entry.leased) {
    return;
  }
  entry.leased = false;
  const ExtentRange range = pack_.expert_extents(entry.layer, entry.expert);
  ReleaseExtents(range, step, client_);
  held_ -= range.count;
}

void CpuExperts::Queue(uint32_t demand, double seconds) {
  if (clock_ != nullptr) {
    experts_[demand].ends = clock_->cpu().Run(clock_->NowNanos(), static_cast<int64_t>(seconds * 1e9 + 0.5));
  }
}

WeightView CpuExperts::PartOf(uint32_t demand, Part part) const {
  const Expert& entry = experts_[demand];
  const PartView view = pack_.part(entry.layer, entry.expert, part);
  const uint32_t first = pack_.expert_extents(entry.layer, entry.expert).first;
  const BufferRef place = segments_->Place(entry.leases[view.extent - first]);
  return WeightView{view.encoding, place + view.base, view.stride, view.rows, view.cols, {}};
}

}  // namespace sluice::inferd
