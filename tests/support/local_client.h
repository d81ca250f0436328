// A client of a WeightStore in the same process and on the same mappings (which TSan can follow): leases,
// submissions, completions, as in inferd.
//
// Thread safety: thread-compatible, like one client's engine thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "common/protocol/lease.h"
#include "common/protocol/rings.h"
#include "weightd/engine/session.h"

namespace sluice {

class LocalClient {
 public:
  explicit LocalClient(weightd::LocalSession session)
      : session_(std::move(session)), submissions_(session_.control), completions_(session_.control) {}

  bool Lease(uint32_t extent, uint64_t* place, size_t pack = 0) {
    uint64_t generation;
    return TryLease(session_.packs[pack].residency[extent], session_.packs[pack].pins[extent], place,
                    &generation);
  }
  // `counts`: false for a use in a scan.
  void Release(uint32_t extent, uint64_t stamp, size_t pack = 0, bool counts = true) {
    ReleaseLease(session_.packs[pack].pins[extent], session_.control.cursors->last_stamp.value, stamp,
                 counts);
  }
  bool Resident(uint32_t extent, size_t pack = 0) const {
    return IsResident(session_.packs[pack].residency[extent]);
  }

  static SubmissionEntry FillExpert(uint64_t id, uint32_t layer, uint32_t expert) {
    SubmissionEntry entry = Plain(id, Opcode::kFillExpert);
    entry.parts = kAllParts;
    entry.layer = layer;
    entry.expert = expert;
    return entry;
  }
  static SubmissionEntry FillExtent(uint64_t id, uint32_t extent) {
    SubmissionEntry entry = Plain(id, Opcode::kFillExtent);
    entry.extent = extent;
    return entry;
  }
  static SubmissionEntry Plain(uint64_t id, Opcode opcode) {
    SubmissionEntry entry{};
    entry.id = id;
    entry.opcode = opcode;
    entry.extent = kNoExtent;
    entry.slab = kNoSlab;
    entry.progress = kNoProgress;
    return entry;
  }

  RingResult Submit(const SubmissionEntry& entry) {
    const RingResult result = submissions_.Push(entry);
    if (submissions_.ClaimServerWake()) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = write(session_.server_bell, &one, sizeof(one));
    }
    return result;
  }

  // The next completion if there is one; it stays unreaped until Reap().
  bool Peek(CompletionEntry* entry) { return completions_.Peek(entry) == RingResult::kOk; }
  void Reap() { completions_.Advance(); }

  // Waits for the next completion, sleeping as a client does. False after `timeout_ms`.
  bool Await(CompletionEntry* entry, int timeout_ms = 10'000) {
    while (!Peek(entry)) {
      char drained[64];
      while (read(session_.client_bell, drained, sizeof(drained)) > 0) {
      }
      if (!completions_.BeginWait()) {
        continue;
      }
      pollfd bell{session_.client_bell, POLLIN, 0};
      const int ready = poll(&bell, 1, timeout_ms);
      completions_.EndWait();
      if (ready == 0) {
        return Peek(entry);
      }
    }
    return true;
  }

  const weightd::LocalSession& session() const { return session_; }

 private:
  weightd::LocalSession session_;
  SubmissionWriter submissions_;
  CompletionReader completions_;
};

}  // namespace sluice
