#include "common/protocol/rings.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_step.h"

namespace sluice {
namespace {

// Entries are copied in words of relaxed atomics: the peer is another process and may be hostile, so it may
// write while we read. That must not be a data race in the language's sense; the copy is validated
// afterwards.
template <typename Entry>
void CopyIn(Entry* shared, const Entry& entry) {
  static_assert(std::is_trivially_copyable_v<Entry> && sizeof(Entry) % 8 == 0);
  uint64_t words[sizeof(Entry) / 8];
  std::memcpy(words, &entry, sizeof(Entry));
  auto* to = reinterpret_cast<uint64_t*>(shared);
  ProtocolStep(ProtocolPoint::kRingCopy, shared);
  for (size_t i = 0; i < sizeof(Entry) / 8; ++i) {
    __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
  }
}

template <typename Entry>
void CopyOut(const Entry* shared, Entry* entry) {
  uint64_t words[sizeof(Entry) / 8];
  const auto* from = reinterpret_cast<const uint64_t*>(shared);
  ProtocolStep(ProtocolPoint::kRingCopy, shared);
  for (size_t i = 0; i < sizeof(Entry) / 8; ++i) {
    words[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
  }
  std::memcpy(static_cast<void*>(entry), words, sizeof(Entry));
}

ControlView ViewOf(std::byte* base, const ControlLayout& layout) {
  ControlView view;
  view.header = reinterpret_cast<ControlHeader*>(base);
  view.cursors = reinterpret_cast<ControlCursors*>(base + kCursorsOffset);
  view.submissions = reinterpret_cast<SubmissionEntry*>(base + layout.submission_offset());
  view.completions = reinterpret_cast<CompletionEntry*>(base + layout.completion_offset());
  view.list = reinterpret_cast<std::atomic<uint32_t>*>(base + layout.list_offset());
  view.progress = reinterpret_cast<std::atomic<uint64_t>*>(base + layout.progress_offset());
  view.layout = layout;
  return view;
}

// Reads the entry at `head`, the first that this reader has not consumed, of a ring whose writer moves
// `tail`. Acquire pairs with the writer's publishing store.
template <typename Entry>
RingResult PeekEntry(const ControlWord& tail, const Entry* ring, uint64_t capacity, uint64_t head,
                     Entry* entry) {
  ProtocolStep(ProtocolPoint::kRingCheck, &tail);
  const uint64_t end = tail.value.load(std::memory_order_acquire);
  if (end == head) {
    return RingResult::kNone;
  }
  if (end < head || end - head > capacity) {
    return RingResult::kCorrupt;
  }
  CopyOut(&ring[head & (capacity - 1)], entry);
  return entry->sequence == head ? RingResult::kOk : RingResult::kCorrupt;
}

// Returns the entries before `head` to the writer. Release: they have been copied out.
void PublishHead(uint64_t head, ControlWord* word) {
  ProtocolStep(ProtocolPoint::kRingPublish, word);
  word->value.store(head, std::memory_order_release);
}

void TakeBack(ControlWord* announcement) {
  ProtocolStep(ProtocolPoint::kSleepReset, announcement);
  announcement->value.store(0, std::memory_order_relaxed);
}

// Announces a sleep, then looks once more: returns false and withdraws the announcement if there is an entry.
// Writers publish and then read the announcement; with all four steps sequentially consistent one side sees
// the other in any interleaving, so no entry is left behind with its reader asleep.
bool Announce(const ControlWord& tail, uint64_t head, ControlWord* announcement) {
  ProtocolStep(ProtocolPoint::kSleepAnnounce, announcement);
  announcement->value.store(1, std::memory_order_seq_cst);
  ProtocolStep(ProtocolPoint::kSleepCheck, &tail);
  if (tail.value.load(std::memory_order_seq_cst) != head) {
    TakeBack(announcement);
    return false;
  }
  return true;
}

// Returns true if the reader must be woken: true for exactly one of several callers, so that it takes one
// system call. The load first keeps the common case, a reader that is awake, free of a locked instruction.
bool TakeAnnouncement(ControlWord* announcement) {
  ProtocolStep(ProtocolPoint::kSleepReset, announcement);
  if (announcement->value.load(std::memory_order_seq_cst) == 0) {
    return false;
  }
  ProtocolStep(ProtocolPoint::kSleepReset, announcement);
  return announcement->value.exchange(0, std::memory_order_seq_cst) != 0;
}

absl::Status HeaderError(const char* field, uint64_t got, uint64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("control region: ", field, " is ", got, ", expected ", expected));
}

}  // namespace

ControlView FormatControl(std::byte* base, const ControlLayout& layout, uint64_t boot_epoch, uint64_t session,
                          uint32_t pack_count) {
  ControlView view = ViewOf(base, layout);
  ControlHeader header{};
  header.magic = kControlMagic;
  header.abi_version = kAbiVersion;
  header.header_bytes = sizeof(ControlHeader);
  header.region_bytes = layout.region_bytes();
  header.boot_epoch = boot_epoch;
  header.session = session;
  header.ring_entries = layout.ring_entries;
  header.submission_bytes = sizeof(SubmissionEntry);
  header.completion_bytes = sizeof(CompletionEntry);
  header.list_entries = layout.list_entries;
  header.progress_words = layout.progress_words;
  header.pack_count = pack_count;
  header.submission_offset = layout.submission_offset();
  header.completion_offset = layout.completion_offset();
  header.list_offset = layout.list_offset();
  header.progress_offset = layout.progress_offset();
  std::memcpy(base, &header, sizeof(header));
  return view;
}

// The header is copied out once and the copy is checked; the layout is computed anew from the counts, so
// offsets in shared memory are never followed.
absl::StatusOr<ControlView> OpenControl(std::byte* base, uint64_t bytes) {
  if (bytes < 4096) {
    return HeaderError("size", bytes, 4096);
  }
  ControlHeader header;
  std::memcpy(&header, base, sizeof(header));
  if (header.magic != kControlMagic) {
    return HeaderError("magic", header.magic, kControlMagic);
  }
  if (header.abi_version != kAbiVersion) {
    return HeaderError("abi_version", header.abi_version, kAbiVersion);
  }
  ControlLayout layout;
  layout.ring_entries = header.ring_entries;
  layout.list_entries = header.list_entries;
  layout.progress_words = header.progress_words;
  if (!layout.valid()) {
    return absl::InvalidArgumentError(absl::StrCat("control region: impossible layout (", header.ring_entries,
                                                   " ring entries, ", header.list_entries, " list entries, ",
                                                   header.progress_words, " progress words)"));
  }
  if (layout.region_bytes() > bytes || header.region_bytes != layout.region_bytes()) {
    return HeaderError("region_bytes", header.region_bytes, layout.region_bytes());
  }
  if (header.submission_bytes != sizeof(SubmissionEntry)) {
    return HeaderError("submission_bytes", header.submission_bytes, sizeof(SubmissionEntry));
  }
  if (header.completion_bytes != sizeof(CompletionEntry)) {
    return HeaderError("completion_bytes", header.completion_bytes, sizeof(CompletionEntry));
  }
  return ViewOf(base, layout);
}

RingResult SubmissionWriter::Push(SubmissionEntry entry) {
  const uint64_t capacity = view_.layout.ring_entries;
  if (tail_ - head_ >= capacity) {
    // The other side's cursor is read only if the ring looks full: its cache line stays with its writer
    // meanwhile. Acquire pairs with the release in Advance(): the entry was copied out before it is written
    // again.
    const uint64_t head = view_.cursors->submission_head.value.load(std::memory_order_acquire);
    if (head < head_ || head > tail_) {
      return RingResult::kCorrupt;
    }
    head_ = head;
    if (tail_ - head_ >= capacity) {
      return RingResult::kNone;
    }
  }
  // The reader compares the sequence number with its own count, which detects a tail that moved without an
  // entry behind it (a broken or hostile writer).
  entry.sequence = tail_;
  CopyIn(&view_.submissions[tail_ & (capacity - 1)], entry);
  ++tail_;
  // The caller reads the announcement next (ClaimServerWake()); Announce() explains why that is enough.
  ProtocolStep(ProtocolPoint::kRingPublish, &view_.cursors->submission_tail);
  view_.cursors->submission_tail.value.store(tail_, std::memory_order_seq_cst);
  return RingResult::kOk;
}

bool SubmissionWriter::ClaimServerWake() { return TakeAnnouncement(&view_.cursors->server_sleeping); }

RingResult CompletionReader::Peek(CompletionEntry* entry) {
  return PeekEntry(view_.cursors->completion_tail, view_.completions, view_.layout.ring_entries, head_,
                   entry);
}

void CompletionReader::Advance() { PublishHead(++head_, &view_.cursors->completion_head); }

bool CompletionReader::BeginWait() {
  return Announce(view_.cursors->completion_tail, head_, &view_.cursors->client_waiting);
}

void CompletionReader::EndWait() { TakeBack(&view_.cursors->client_waiting); }

RingResult SubmissionReader::Pop(SubmissionEntry* entry) {
  const RingResult result = Peek(entry);
  if (result == RingResult::kOk) {
    Advance();
  }
  return result;
}

RingResult SubmissionReader::Peek(SubmissionEntry* entry) {
  return PeekEntry(view_.cursors->submission_tail, view_.submissions, view_.layout.ring_entries, head_,
                   entry);
}

void SubmissionReader::Advance() { PublishHead(++head_, &view_.cursors->submission_head); }

bool SubmissionReader::BeginSleep() {
  return Announce(view_.cursors->submission_tail, head_, &view_.cursors->server_sleeping);
}

void SubmissionReader::EndSleep() { TakeBack(&view_.cursors->server_sleeping); }

// There is always room: a session's outstanding requests are limited to the ring's entries, which is checked
// when they are accepted.
uint64_t CompletionWriter::Push(CompletionEntry entry) {
  const uint64_t sequence = tail_;
  entry.sequence = sequence;
  CopyIn(&view_.completions[sequence & (view_.layout.ring_entries - 1)], entry);
  ++tail_;
  ProtocolStep(ProtocolPoint::kRingPublish, &view_.cursors->completion_tail);
  view_.cursors->completion_tail.value.store(tail_, std::memory_order_seq_cst);
  return sequence;
}

RingResult CompletionWriter::Reaped(uint64_t* head) {
  ProtocolStep(ProtocolPoint::kRingCheck, &view_.cursors->completion_head);
  const uint64_t now = view_.cursors->completion_head.value.load(std::memory_order_acquire);
  if (now < head_ || now > tail_) {
    return RingResult::kCorrupt;
  }
  head_ = now;
  *head = now;
  return RingResult::kOk;
}

bool CompletionWriter::ClaimClientWake() { return TakeAnnouncement(&view_.cursors->client_waiting); }

}  // namespace sluice
