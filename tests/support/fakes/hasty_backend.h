// A backend whose owner skips one wait: among the waits and queries of one kind it leaves out one, so that
// the owner goes on as if the device had reported the work as done. Tests use it to show that each wait is
// needed.
//
// A kind is the call and the operation that it waits for: "Wait behind Router"; for a backend with a name
// after it: "cpu: Wait behind MoeExperts". A wait for work that is known to be done does not count. A
// DelayedBackend below it names the operation that the owner was too early for.
//
// Thread safety: as Backend.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/owned_operation.h"

namespace sluice {

// Outlives the backend.
struct HastyRun {
  std::string kind;                       // kind to skip one of; empty: none
  uint64_t number = 0;                    // which one of them, from 1
  std::map<std::string, uint64_t> waits;  // by kind, in the run so far
  bool left_out = false;
  absl::Status told;  // the devices' final verdict
};

class HastyBackend final : public Backend, public Queue {
 public:
  HastyBackend(std::unique_ptr<Backend> behind, HastyRun* run, const std::string& name = "")
      : behind_(std::move(behind)), run_(run), name_(name.empty() ? "" : name + ": ") {}
  ~HastyBackend() override { run_->told.Update(behind_->queue().Wait(behind_->queue().Record())); }

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    return behind_->Allocate(bytes, kind);
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    return behind_->AllocateShared(bytes);
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return behind_->Import(memory);
  }
  absl::Status Free(BufferId buffer) override { return behind_->Free(buffer); }
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override { return behind_->HostRead(ref, bytes); }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override { return behind_->HostWrite(ref, bytes); }
  Queue& queue() override { return *this; }
  void BeginStep() override { behind_->BeginStep(); }
  void EndStep() override { behind_->EndStep(); }
  BackendCounters Counters() const override { return behind_->Counters(); }
  std::string Describe() const override { return behind_->Describe(); }

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override {
    last_ = "Upload";
    return behind_->queue().Upload(source, bytes, destination);
  }
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override {
    last_ = "Download";
    return behind_->queue().Download(source, bytes, destination);
  }
  absl::Status Enqueue(const Operation& operation) override {
    last_ = std::visit([](const auto* args) { return NameOf(*args); }, operation);
    return behind_->queue().Enqueue(operation);
  }
  bool RunsAtCall() const override { return behind_->queue().RunsAtCall(); }
  absl::Status BeginGraph() override { return behind_->queue().BeginGraph(); }
  absl::Status EndGraph() override { return behind_->queue().EndGraph(); }
  Event Record() override {
    const Event event = behind_->queue().Record();
    events_.emplace_back(event.value, last_);
    return event;
  }
  bool IsDone(Event event) override {
    if (event.value <= std::max(known_, assumed_)) {
      return true;
    }
    if (LeavesOut("IsDone", event)) {
      return true;
    }
    const bool done = behind_->queue().IsDone(event);
    known_ = done ? event.value : known_;
    return done;
  }
  absl::Status Wait(Event event) override {
    if (event.value > known_ && LeavesOut("Wait", event)) {
      return absl::OkStatus();
    }
    known_ = std::max(known_, event.value);
    return behind_->queue().Wait(event);
  }
  absl::StatusOr<double> Seconds(Event from, Event to) override { return behind_->queue().Seconds(from, to); }

 private:
  bool LeavesOut(const char* call, Event event) {
    const auto found = std::lower_bound(events_.begin(), events_.end(), std::make_pair(event.value, ""),
                                        [](const auto& a, const auto& b) { return a.first < b.first; });
    const std::string kind =
        absl::StrCat(name_, call, " behind ", found == events_.end() ? "?" : found->second);
    if (++run_->waits[kind] != run_->number || kind != run_->kind) {
      return false;
    }
    assumed_ = event.value;
    run_->left_out = true;
    return true;
  }

  const std::unique_ptr<Backend> behind_;
  HastyRun* const run_;
  const std::string name_;
  const char* last_ = "nothing";
  std::vector<std::pair<uint64_t, const char*>> events_;  // the operation that each was recorded after
  uint64_t known_ = 0;                                    // known to be done
  uint64_t assumed_ = 0;                                  // assumed done
};

}  // namespace sluice
