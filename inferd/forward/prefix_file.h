// The file of a prefix cache, which lets it outlive the process, however that ends: pages of the KV cache and
// recurrent states, each with its tokens, written one by one while the process runs.
//
// Its content decides tokens, so every record has a digest bound to its place in this file, and a file is
// valid only for the identity (model, options, device, program) that wrote it. It also holds the secret of
// the prefix index (kv_cache.h) and conversations as token ids, so only its owner may access it (0600).
//
//   head    "SLPREFIX", u32 version, u32 0, then identity, secret (16 bytes each), u64 bytes of a page, u64
//           bytes of a state, u64 slots for pages, u64 slots for states, and the digest of all that
//   slot    a record, or a hole: digest (16), u64 stamp, digest of the pages before it (16), u32 position,
//   u32
//           tokens, i32 tokens[kPageTokens], the content; the first digest covers what follows it, the secret
//           and the slot's number
// Slots for pages come first. A record with a larger stamp was written later; 0 marks a slot never written.
// Numbers are little-endian, digests XXH3-128. A record that a dying process wrote in part is found by its
// digest; nothing is synced, since a lost record costs a recomputation only.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "kernels/ops.h"

namespace sluice::inferd {

struct PrefixFileHead {
  Digest128 identity;
  Digest128 secret;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t page_slots = 0;
  uint64_t state_slots = 0;
};

// The position of a page or state in a sequence.
struct PrefixRecord {
  uint64_t stamp = 0;
  Digest128 before;       // digest of the whole pages before it
  uint32_t position = 0;  // a state's position; 0 for pages
  uint32_t known = 0;     // tokens after those pages
  std::array<int32_t, kPageTokens> tokens{};
};

// Digest of a cache's identity and of the running program: another build may compute other bits.
absl::StatusOr<Digest128> PrefixFileIdentity(const std::string& cache);

// Bytes of a slot whose record has `content_bytes` of content.
uint64_t PrefixRecordBytes(uint64_t content_bytes);

// Numbers of slots in a file of at most `limit` bytes, in `head`, whose other members are set. A state is
// useless without the pages before it, so states (`states` at most) get a quarter.
void DivideSlots(uint64_t limit, uint64_t states, PrefixFileHead* head);

class PrefixFile {
 public:
  // Opens a file for reading and writing. NOT_FOUND: no file. FAILED_PRECONDITION: another identity.
  // DATA_LOSS: the head is damaged or the file truncated. PERMISSION_DENIED: others may read or write it, or
  // another user owns it. UNAVAILABLE: another process has it open.
  static absl::StatusOr<PrefixFile> Open(const std::string& path, const PrefixFileHead& wanted);

  // Creates an empty file, or replaces one that no process has open. UNAVAILABLE: another process has it
  // open.
  static absl::StatusOr<PrefixFile> Create(const std::string& path, const PrefixFileHead& head);

  const PrefixFileHead& head() const { return head_; }
  const std::string& path() const { return path_; }
  uint64_t slots() const { return head_.page_slots + head_.state_slots; }

  // Stamps of slots first .. first + count - 1.
  absl::StatusOr<std::vector<uint64_t>> Stamps(uint64_t first, uint64_t count) const;
  // Reads a slot; DATA_LOSS if the record is corrupt. REQUIRES: slot < slots(), and its stamp is not 0.
  absl::Status Read(uint64_t slot, PrefixRecord* record, std::vector<std::byte>* content) const;
  // Writes a slot. REQUIRES: slot < slots(), and `content` has the bytes of a page or state.
  absl::Status Write(uint64_t slot, const PrefixRecord& record, absl::Span<const std::byte> content);
  // Makes the records durable.
  absl::Status Sync() const { return file_.Sync(); }

 private:
  PrefixFile(std::string path, File file, const PrefixFileHead& head)
      : path_(std::move(path)), file_(std::move(file)), head_(head) {}
  uint64_t OffsetOf(uint64_t slot) const;
  uint64_t ContentBytes(uint64_t slot) const {
    return slot < head_.page_slots ? head_.page_bytes : head_.state_bytes;
  }

  std::string path_;  // file_ may carry the name that it was created under
  File file_;
  PrefixFileHead head_;
  std::vector<std::byte> buffer_;
};

// Assigns entries of the cache (pages, or kept states) to a range of slots of the file, and queues the
// entries whose content is not in the file.
class PrefixSlots {
 public:
  // No slots yet, for entries 0 .. entries - 1.
  explicit PrefixSlots(uint32_t entries) { Reset(entries); }

  // Marks a slot as free; slots freed first are used first.
  void AddFree(uint64_t slot) { free_.push_back(slot); }
  // Notes that `slot` holds the entry's content.
  void Assign(uint32_t entry, uint64_t slot) { slot_of_[entry] = slot; }
  // Queues an entry whose content is new.
  void Changed(uint32_t entry);
  // Frees the slot of an entry whose content is gone, and takes it off the queue.
  void Forget(uint32_t entry);
  // Number of entries changes; all are empty.
  void Reset(uint32_t entries);

  // Takes the entry that was queued first; none if all are in the file.
  std::optional<uint32_t> Next();
  bool HasSlot(uint32_t entry) const { return slot_of_[entry] != kNone; }
  // Returns the slot to write the entry to: its own, a free one, or that of the first of `victims` (entries,
  // the least useful first) that has one. None if there is none.
  std::optional<uint64_t> SlotFor(uint32_t entry, absl::Span<const uint32_t> victims);
  // True if SlotFor() needs no victim.
  bool HasRoomFor(uint32_t entry) const { return HasSlot(entry) || !free_.empty(); }
  // Number of entries in the file.
  uint64_t assigned() const;

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  std::deque<uint64_t> free_;
  std::vector<uint64_t> slot_of_;  // by entry; kNone: not in the file
  std::vector<uint8_t> queued_;    // by entry
  std::deque<uint32_t> queue_;
};

}  // namespace sluice::inferd
