#include "kernels/common/cpu_backend.h"

#include <cstring>

namespace sluice {

BackendCounters CpuBackend::Counters() const {
  BackendCounters counters;
  counters.kernel_seconds = static_cast<double>(kernel_nanos_.load(std::memory_order_relaxed)) * 1e-9;
  return counters;
}

absl::StatusOr<BufferId> CpuBackend::Allocate(uint64_t bytes, BufferKind) { return memory_.Allocate(bytes); }

absl::StatusOr<BufferId> CpuBackend::Import(const ImportSpec& spec) {
  if (spec.fd >= 0) {
    return absl::UnimplementedError("import of a descriptor: this device imports mapped memory only");
  }
  return memory_.Import(spec.base, spec.bytes);
}

absl::Status CpuBackend::Free(BufferId buffer) { return memory_.Free(buffer); }

const std::byte* CpuBackend::HostRead(BufferRef ref, uint64_t bytes) { return memory_.Read(ref, bytes); }

std::byte* CpuBackend::HostWrite(BufferRef ref, uint64_t bytes) { return memory_.Write(ref, bytes); }

absl::Status CpuBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  std::byte* place = memory_.Write(destination, bytes);
  if (place == nullptr) {
    return memory_.Explain(destination, bytes, true, "upload");
  }
  if (bytes > 0) {
    std::memcpy(place, source, bytes);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
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
