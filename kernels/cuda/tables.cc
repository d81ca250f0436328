#include "kernels/cuda/tables.h"

#include "common/status.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {
namespace {

constexpr uint64_t kAlignment = 16;
constexpr uint64_t kSmallestSegment = 64 << 10;

uint64_t Up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<std::unique_ptr<Tables>> Tables::Create(uint64_t bytes, cudaStream_t stream) {
  std::unique_ptr<Tables> tables(new Tables(std::max(Up(bytes), kSmallestSegment), stream));
  const uint64_t all = kSegments * tables->segment_bytes_;
  void* place = nullptr;
  RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&place, all, cudaHostAllocDefault),
                           absl::StrCat("pinned memory for tables of ", all, " bytes")));
  tables->host_ = static_cast<uint8_t*>(place);
  RETURN_IF_ERROR(
      StatusOf(cudaMalloc(&place, all), absl::StrCat("device memory for tables of ", all, " bytes")));
  tables->device_ = static_cast<uint8_t*>(place);
  for (cudaEvent_t& event : tables->events_) {
    RETURN_IF_ERROR(
        StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event for tables"));
  }
  return tables;
}

Tables::~Tables() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) {
      cudaEventDestroy(event);
    }
  }
  cudaFree(device_);
  cudaFreeHost(host_);
}

absl::Status Tables::Begin(uint64_t bytes) {
  if (bytes > segment_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("tables of ", bytes, " bytes for a call, more than the ",
                                                     segment_bytes_, " of a segment"));
  }
  const uint64_t end = (static_cast<uint64_t>(segment_) + 1) * segment_bytes_;
  if (next_ + bytes > end) {
    RETURN_IF_ERROR(StatusOf(cudaEventRecord(events_[segment_], stream_), "the end of a segment of tables"));
    segment_ = (segment_ + 1) % kSegments;
    RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(events_[segment_]), "waiting for tables of earlier calls"));
    next_ = static_cast<uint64_t>(segment_) * segment_bytes_;
  }
  begun_ = next_;
  return absl::OkStatus();
}

uint64_t Tables::Take(uint64_t bytes) {
  const uint64_t at = next_;
  next_ += Up(bytes);
  return at;
}

absl::Status Tables::Send() {
  if (next_ == begun_) {
    return absl::OkStatus();
  }
  return StatusOf(
      cudaMemcpyAsync(device_ + begun_, host_ + begun_, next_ - begun_, cudaMemcpyHostToDevice, stream_),
      "copying tables");
}

}  // namespace sluice::cuda
