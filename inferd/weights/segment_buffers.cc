#include "inferd/weights/segment_buffers.h"

#include "common/status.h"

namespace sluice::inferd {

absl::Status SegmentBuffers::OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) {
  const absl::StatusOr<BufferId> buffer = backend_->Import({base, bytes});
  if (!buffer.ok()) {
    return Annotate(buffer.status(), absl::StrCat("importing segment ", segment, " of ", bytes, " bytes"));
  }
  buffers_[segment] = *buffer;
  return absl::OkStatus();
}

void SegmentBuffers::OnSegmentUnmapped(uint32_t segment) {
  const auto found = buffers_.find(segment);
  if (found != buffers_.end()) {
    backend_->Free(found->second).IgnoreError();  // the id is valid, and no lease is left in the segment
    buffers_.erase(found);
  }
}

BufferRef SegmentBuffers::Place(const ExtentLease& lease) const {
  const auto found = buffers_.find(lease.segment);
  return found == buffers_.end() ? BufferRef{} : BufferRef{found->second, lease.offset};
}

}  // namespace sluice::inferd
