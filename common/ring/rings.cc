#include "common/ring/rings.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/ring/protocol_step.h"

namespace sluice {
namespace {

// Entries are copied in words of relaxed atomics: the peer is another process and may be hostile, so it may
// write while we read. That must not be a data race in the language's sense; whether the bytes make sense is
// checked on the copy.
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
    // The other side's cursor is read only when the ring looks full: its cache line stays with its writer
    // meanwhile. Acquire pairs with the release in Advance(): the place was copied out before it is written
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
  // The reader compares the sequence number with its own count: a tail that moved without an entry behind it
  // (a broken or hostile writer) is found out.
  entry.sequence = tail_;
  CopyIn(&view_.submissions[tail_ & (capacity - 1)], entry);
  ++tail_;
  // Publishing and the look at `server_sleeping` that follows (TakeServerSleep()) are sequentially
  // consistent, as are BeginSleep()'s two steps in the other order. In any interleaving one side sees the
  // other: an entry is never left behind with the reader asleep.
  ProtocolStep(ProtocolPoint::kRingPublish, &view_.cursors->submission_tail);
  view_.cursors->submission_tail.value.store(tail_, std::memory_order_seq_cst);
  return RingResult::kOk;
}

// True for exactly one of several callers, so that a sleeping reader is woken by one system call. The load
// first keeps the common case, a reader that is awake, free of a locked instruction.
bool SubmissionWriter::TakeServerSleep() {
  std::atomic<uint64_t>& sleeping = view_.cursors->server_sleeping.value;
  ProtocolStep(ProtocolPoint::kSleepTake, &sleeping);
  if (sleeping.load(std::memory_order_seq_cst) == 0) {
    return false;
  }
  ProtocolStep(ProtocolPoint::kSleepTake, &sleeping);
  return sleeping.exchange(0, std::memory_order_seq_cst) != 0;
}

RingResult CompletionReader::Peek(CompletionEntry* entry) {
  ProtocolStep(ProtocolPoint::kRingLook, &view_.cursors->completion_tail);
  const uint64_t tail = view_.cursors->completion_tail.value.load(std::memory_order_acquire);
  if (tail == head_) {
    return RingResult::kNone;
  }
  const uint64_t capacity = view_.layout.ring_entries;
  if (tail < head_ || tail - head_ > capacity) {
    return RingResult::kCorrupt;
  }
  CopyOut(&view_.completions[head_ & (capacity - 1)], entry);
  return entry->sequence == head_ ? RingResult::kOk : RingResult::kCorrupt;
}

void CompletionReader::Advance() {
  ++head_;
  ProtocolStep(ProtocolPoint::kRingPublish, &view_.cursors->completion_head);
  view_.cursors->completion_head.value.store(head_, std::memory_order_release);
}

// Announce, then look once more: the counterpart of the writer's publish, then look at the announcement.
bool CompletionReader::BeginWait() {
  ProtocolStep(ProtocolPoint::kSleepAnnounce, &view_.cursors->client_waiting);
  view_.cursors->client_waiting.value.store(1, std::memory_order_seq_cst);
  ProtocolStep(ProtocolPoint::kSleepLook, &view_.cursors->completion_tail);
  if (view_.cursors->completion_tail.value.load(std::memory_order_seq_cst) != head_) {
    EndWait();
    return false;
  }
  return true;
}

void CompletionReader::EndWait() {
  ProtocolStep(ProtocolPoint::kSleepTake, &view_.cursors->client_waiting);
  view_.cursors->client_waiting.value.store(0, std::memory_order_relaxed);
}

RingResult SubmissionReader::Pop(SubmissionEntry* entry) {
  const RingResult result = Peek(entry);
  if (result == RingResult::kOk) {
    Advance();
  }
  return result;
}

RingResult SubmissionReader::Peek(SubmissionEntry* entry) {
  ProtocolStep(ProtocolPoint::kRingLook, &view_.cursors->submission_tail);
  const uint64_t tail = view_.cursors->submission_tail.value.load(std::memory_order_acquire);
  if (tail == head_) {
    return RingResult::kNone;
  }
  const uint64_t capacity = view_.layout.ring_entries;
  if (tail < head_ || tail - head_ > capacity) {
    return RingResult::kCorrupt;
  }
  CopyOut(&view_.submissions[head_ & (capacity - 1)], entry);
  return entry->sequence == head_ ? RingResult::kOk : RingResult::kCorrupt;
}

void SubmissionReader::Advance() {
  ++head_;
  ProtocolStep(ProtocolPoint::kRingPublish, &view_.cursors->submission_head);
  view_.cursors->submission_head.value.store(head_, std::memory_order_release);
}

bool SubmissionReader::BeginSleep() {
  ProtocolStep(ProtocolPoint::kSleepAnnounce, &view_.cursors->server_sleeping);
  view_.cursors->server_sleeping.value.store(1, std::memory_order_seq_cst);
  ProtocolStep(ProtocolPoint::kSleepLook, &view_.cursors->submission_tail);
  if (view_.cursors->submission_tail.value.load(std::memory_order_seq_cst) != head_) {
    EndSleep();
    return false;
  }
  return true;
}

void SubmissionReader::EndSleep() {
  ProtocolStep(ProtocolPoint::kSleepTake, &view_.cursors->server_sleeping);
  view_.cursors->server_sleeping.value.store(0, std::memory_order_relaxed);
}

// There is always room: a session may have no more requests outstanding than the ring has places, which is
// checked when they are taken.
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
  ProtocolStep(ProtocolPoint::kRingLook, &view_.cursors->completion_head);
  const uint64_t now = view_.cursors->completion_head.value.load(std::memory_order_acquire);
  if (now < head_ || now > tail_) {
    return RingResult::kCorrupt;
  }
  head_ = now;
  *head = now;
  return RingResult::kOk;
}

bool CompletionWriter::TakeClientWait() {
  std::atomic<uint64_t>& waiting = view_.cursors->client_waiting.value;
  ProtocolStep(ProtocolPoint::kSleepTake, &waiting);
  if (waiting.load(std::memory_order_seq_cst) == 0) {
    return false;
  }
  ProtocolStep(ProtocolPoint::kSleepTake, &waiting);
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace sluice
