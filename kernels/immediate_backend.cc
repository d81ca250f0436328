#include "kernels/immediate_backend.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

BackendCounters ImmediateBackend::Counters() const {
  BackendCounters counters;
  counters.kernel_seconds = static_cast<double>(kernel_nanos_.load(std::memory_order_relaxed)) * 1e-9;
  return counters;
}

absl::StatusOr<BufferId> ImmediateBackend::Allocate(uint64_t bytes, BufferKind) {
  return memory_.Allocate(bytes);
}

absl::StatusOr<SharedBuffer> ImmediateBackend::AllocateShared(uint64_t bytes) {
  SharedBuffer shared;
  ASSIGN_OR_RETURN(shared.buffer, memory_.AllocateShared(bytes, &shared.fd));
  shared.bytes = memory_.BytesOf(shared.buffer);
  return shared;
}

absl::StatusOr<BufferId> ImmediateBackend::Import(absl::Span<const std::byte> memory) {
  return memory_.Import(memory);
}

Event ImmediateBackend::Record() {
  times_[++recorded_ % kTimedEvents] = clock_.NowNanos();
  return {recorded_};
}

absl::StatusOr<double> ImmediateBackend::Seconds(Event from, Event to) {
  if (from.value == 0 || from.value > to.value || to.value > recorded_ ||
      from.value + kTimedEvents <= recorded_) {
    return absl::OutOfRangeError(absl::StrCat("no times of the points ", from.value, " and ", to.value,
                                              ": known are the last ", kTimedEvents, " of ", recorded_));
  }
  return static_cast<double>(times_[to.value % kTimedEvents] - times_[from.value % kTimedEvents]) * 1e-9;
}

absl::Status ImmediateBackend::Free(BufferId buffer) { return memory_.Free(buffer); }

const std::byte* ImmediateBackend::HostRead(BufferRef ref, uint64_t bytes) {
  return memory_.Read(ref, bytes);
}

std::byte* ImmediateBackend::HostWrite(BufferRef ref, uint64_t bytes) { return memory_.Write(ref, bytes); }

absl::Status ImmediateBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  std::byte* place = memory_.Write(destination, bytes);
  if (place == nullptr) {
    return memory_.Explain(destination, bytes, true, "upload");
  }
  if (bytes > 0) {
    std::memcpy(place, source, bytes);
  }
  return absl::OkStatus();
}

absl::Status ImmediateBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
  const std::byte* place = memory_.Read(source, bytes);
  if (place == nullptr) {
    return memory_.Explain(source, bytes, false, "download");
  }
  if (bytes > 0) {
    std::memcpy(destination, place, bytes);
  }
  return absl::OkStatus();
}

}  // namespace sluice
