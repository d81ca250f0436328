// The four ends of a session's two rings, over a mapped control region (session_abi.h).
//
// Every end keeps its own cursor in private memory and only publishes it; the other side's cursor is checked
// for plausibility. Entries are copied word by word with atomic loads and stores: the copy is made once, and
// later writes of the peer to the shared entry have no effect.
//
// Thread safety: each object belongs to one thread at a time; the two ends of one ring may be on any two
// threads or processes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/protocol/session_abi.h"

namespace sluice {

// Addresses within one mapping of a control region. Borrowed: the mapping must outlive it.
struct ControlView {
  ControlHeader* header = nullptr;
  ControlCursors* cursors = nullptr;
  SubmissionEntry* submissions = nullptr;
  CompletionEntry* completions = nullptr;
  std::atomic<uint32_t>* list = nullptr;
  std::atomic<uint64_t>* progress = nullptr;
  ControlLayout layout;
};

// weightd: formats a zeroed region of layout.region_bytes() at `base` and returns its view; writes its
// header.
ControlView FormatControl(std::byte* base, const ControlLayout& layout, uint64_t boot_epoch, uint64_t session,
                          uint32_t pack_count);

// Client: checks the header against this build and against `bytes`, the mapping's size. The header is copied
// before it is checked. INVALID_ARGUMENT names the field.
absl::StatusOr<ControlView> OpenControl(std::byte* base, uint64_t bytes);

enum class RingResult {
  kOk,
  kNone,    // no entry to take, or no room to put one
  kCorrupt  // the peer's cursor or sequence is impossible: the session has failed
};

// Client's end of the submission ring.
class SubmissionWriter {
 public:
  explicit SubmissionWriter(const ControlView& view) : view_(view) {}

  // Copies `entry` in (its sequence is set) and publishes it. kNone: the ring is full, which never happens if
  // the caller keeps its outstanding requests at or below ring_entries.
  RingResult Push(SubmissionEntry entry);

  // Call after one or more Push: true if weightd sleeps and the server bell must be rung. At most one caller
  // per sleep gets true.
  bool ClaimServerWake();

  uint64_t tail() const { return tail_; }
  // Number of entries that weightd has consumed, with their lists.
  uint64_t Consumed() const { return view_.cursors->submission_head.value.load(std::memory_order_acquire); }

 private:
  ControlView view_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;  // last value seen of weightd's
};

// Client's end of the completion ring.
class CompletionReader {
 public:
  explicit CompletionReader(const ControlView& view) : view_(view) {}

  // Copies the oldest unread completion out. The extents it filled stay resident until Advance().
  RingResult Peek(CompletionEntry* entry);
  // Returns the entry to weightd. REQUIRES: the last Peek was kOk.
  void Advance();

  // Announces that the client is about to sleep. False: a completion is there, do not sleep. After waking, or
  // if the client does not sleep, call EndWait(). Drain the client bell's pipe before the next BeginWait().
  bool BeginWait();
  void EndWait();

 private:
  ControlView view_;
  uint64_t head_ = 0;
};

// weightd's end of the submission ring.
class SubmissionReader {
 public:
  explicit SubmissionReader(const ControlView& view) : view_(view) {}

  // Copies the next entry out and returns its place. kCorrupt: tail behind head or more than a ring ahead, or
  // the entry's sequence is not its number.
  RingResult Pop(SubmissionEntry* entry);
  // The same in two steps: the entry's list in the index arena stays valid until Advance().
  RingResult Peek(SubmissionEntry* entry);
  void Advance();

  // Announces that weightd is about to sleep. False: entries are there, do not sleep.
  bool BeginSleep();
  void EndSleep();

  uint64_t head() const { return head_; }

 private:
  ControlView view_;
  uint64_t head_ = 0;
};

// weightd's end of the completion ring.
class CompletionWriter {
 public:
  explicit CompletionWriter(const ControlView& view) : view_(view) {}

  // Copies `entry` in (its sequence is set, and returned) and publishes it. REQUIRES: room, which weightd has
  // checked with reaped() when it accepted the submission.
  uint64_t Push(CompletionEntry entry);

  // Number of completions that the client has reaped. kCorrupt: it ran backwards, or past the completed
  // entries.
  RingResult Reaped(uint64_t* head);

  // Call after one or more Push: true if the client sleeps and the client bell must be rung.
  bool ClaimClientWake();

  uint64_t tail() const { return tail_; }

 private:
  ControlView view_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;  // last value seen of the client's
};

}  // namespace sluice
