// A view of a backend that frees in its destructor every buffer allocated through it, for work that ends
// before the backend does.
//
// Thread safety: as the backend's; it is made, used and destroyed on the backend's thread.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class ScopedBackend final : public Backend {
 public:
  // `backend` outlives this object.
  explicit ScopedBackend(Backend* backend) : backend_(backend) {}
  ~ScopedBackend() override {
    for (const BufferId buffer : allocated_) backend_->Free(buffer).IgnoreError();  // all are allocated
  }
  // Leaves the buffers to the backend.
  void Forget() { allocated_.clear(); }

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    ASSIGN_OR_RETURN(const BufferId buffer, backend_->Allocate(bytes, kind));
    allocated_.push_back(buffer);
    return buffer;
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    ASSIGN_OR_RETURN(const SharedBuffer shared, backend_->AllocateShared(bytes));
    allocated_.push_back(shared.buffer);
    return shared;
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return backend_->Import(memory);
  }
  absl::Status Free(BufferId buffer) override {
    std::erase(allocated_, buffer);
    return backend_->Free(buffer);
  }
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override { return backend_->HostRead(ref, bytes); }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override { return backend_->HostWrite(ref, bytes); }
  Queue& queue() override { return backend_->queue(); }
  void BeginStep() override { backend_->BeginStep(); }
  void EndStep() override { backend_->EndStep(); }
  BackendCounters Counters() const override { return backend_->Counters(); }
  std::string Describe() const override { return backend_->Describe(); }

 private:
  Backend* const backend_;
  std::vector<BufferId> allocated_;
};

}  // namespace sluice::inferd
