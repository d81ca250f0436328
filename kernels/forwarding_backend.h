// Bases of decorators: a backend and a queue that pass every call on to the one they wrap. A decorator
// overrides what it changes, so a new method of the interface needs no edit of it.
//
// Thread safety: as the wrapped one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace sluice {

class ForwardingQueue : public Queue {
 public:
  // `inner` outlives this.
  explicit ForwardingQueue(Queue* inner) : inner_queue_(inner) {}

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override {
    return inner_queue_->Upload(source, bytes, destination);
  }
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override {
    return inner_queue_->Download(source, bytes, destination);
  }
  absl::Status Enqueue(const Operation& operation) override { return inner_queue_->Enqueue(operation); }
  bool RunsAtCall() const override { return inner_queue_->RunsAtCall(); }
  absl::Status BeginGraph() override { return inner_queue_->BeginGraph(); }
  absl::Status EndGraph() override { return inner_queue_->EndGraph(); }
  Event Record() override { return inner_queue_->Record(); }
  bool IsDone(Event event) override { return inner_queue_->IsDone(event); }
  absl::Status Wait(Event event) override { return inner_queue_->Wait(event); }
  absl::StatusOr<double> Seconds(Event from, Event to) override { return inner_queue_->Seconds(from, to); }

 protected:
  Queue& inner_queue() const { return *inner_queue_; }

 private:
  Queue* const inner_queue_;
};

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner)
      : owned_(std::move(inner)), inner_backend_(owned_.get()) {}
  // `inner` outlives this.
  explicit ForwardingBackend(Backend* inner) : inner_backend_(inner) {}

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    return inner_backend_->Allocate(bytes, kind);
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    return inner_backend_->AllocateShared(bytes);
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return inner_backend_->Import(memory);
  }
  absl::Status Free(BufferId buffer) override { return inner_backend_->Free(buffer); }
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override {
    return inner_backend_->HostRead(ref, bytes);
  }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override {
    return inner_backend_->HostWrite(ref, bytes);
  }
  Queue& queue() override { return inner_backend_->queue(); }
  void BeginStep() override { inner_backend_->BeginStep(); }
  void EndStep() override { inner_backend_->EndStep(); }
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override {
    return inner_backend_->SetSparseSwitches(entries);
  }
  BackendCounters Counters() const override { return inner_backend_->Counters(); }
  std::string Describe() const override { return inner_backend_->Describe(); }

 protected:
  Backend& inner_backend() const { return *inner_backend_; }

 private:
  const std::unique_ptr<Backend> owned_;  // null where the wrapped backend is borrowed
  Backend* const inner_backend_;
};

}  // namespace sluice
