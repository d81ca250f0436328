// A backend that separates host and device memory like a GPU, in front of one that computes in host memory
// (device `sim`): the host sees only staging memory, and the device reads no host memory. So code that works
// here has requested every transfer that it needs.
//
// Thread safety: as Backend's; Counters() and Describe() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/base/status.h"
#include "kernels/forwarding_backend.h"

namespace sluice::inferd {

class OwnMemoryDevice final : public ForwardingBackend {
 public:
  explicit OwnMemoryDevice(std::unique_ptr<Backend> inner) : ForwardingBackend(std::move(inner)) {}

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    ASSIGN_OR_RETURN(const BufferId buffer, ForwardingBackend::Allocate(bytes, kind));
    if (kind == BufferKind::kStaging) {
      staging_.insert(buffer);
    }
    return buffer;
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return absl::UnimplementedError(
        absl::StrCat("the device cannot read ", memory.size(), " bytes of the host's memory"));
  }
  absl::Status Free(BufferId buffer) override {
    staging_.erase(buffer);
    return ForwardingBackend::Free(buffer);
  }
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override {
    return staging_.contains(ref.buffer) ? ForwardingBackend::HostRead(ref, bytes) : nullptr;
  }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override {
    return staging_.contains(ref.buffer) ? ForwardingBackend::HostWrite(ref, bytes) : nullptr;
  }
  std::string Describe() const override {
    return absl::StrCat(ForwardingBackend::Describe(), ", memory of its own");
  }

 private:
  absl::flat_hash_set<BufferId> staging_;
};

}  // namespace sluice::inferd
