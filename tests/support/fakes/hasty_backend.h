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
#include "kernels/forwarding_backend.h"
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

class HastyBackend final : public ForwardingBackend, public ForwardingQueue {
 public:
  HastyBackend(std::unique_ptr<Backend> inner, HastyRun* run, const std::string& name = "")
      : ForwardingBackend(std::move(inner)),
        ForwardingQueue(&inner_backend().queue()),
        run_(run),
        name_(name.empty() ? "" : name + ": ") {}
  ~HastyBackend() override { run_->told.Update(inner_queue().Wait(inner_queue().Record())); }

  Queue& queue() override { return *this; }
  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override {
    last_ = "Upload";
    return inner_queue().Upload(source, bytes, destination);
  }
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override {
    last_ = "Download";
    return inner_queue().Download(source, bytes, destination);
  }
  absl::Status Enqueue(const Operation& operation) override {
    last_ = std::visit([](const auto* args) { return NameOf(*args); }, operation);
    return inner_queue().Enqueue(operation);
  }
  Event Record() override {
    const Event event = inner_queue().Record();
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
    const bool done = inner_queue().IsDone(event);
    known_ = done ? event.value : known_;
    return done;
  }
  absl::Status Wait(Event event) override {
    if (event.value > known_ && LeavesOut("Wait", event)) {
      return absl::OkStatus();
    }
    known_ = std::max(known_, event.value);
    return inner_queue().Wait(event);
  }

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

  HastyRun* const run_;
  const std::string name_;
  const char* last_ = "nothing";
  std::vector<std::pair<uint64_t, const char*>> events_;  // the operation that each was recorded after
  uint64_t known_ = 0;                                    // known to be done
  uint64_t assumed_ = 0;                                  // assumed done
};

}  // namespace sluice
