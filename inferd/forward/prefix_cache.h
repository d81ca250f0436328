// The prefix cache: results of running and past sequences, shared with sequences that begin alike. It holds
// pages of the KV cache found by content (kv_cache.h), and recurrent states at some positions
// (recurrent_states.h).
//
// Whole pages are shared between their holders. If a page continues differently, or its writer still runs,
// the common beginning is copied; a page without holders whose whole content matches is taken over. So a
// sequence that continues a cached prefix computes only its own tokens.
//
// A model with recurrent layers can continue only from a position with a kept state: the end of a prompt, the
// end of a sequence (finished, cancelled or preempted), and the position where two sequences diverged, at
// which a later prompt stops for a step. The least recently used state is evicted for another.
//
// PrefixReuse selects the positions: if a policy computes generated tokens from more than their tokens, only
// prompts are stored, and only for prompts.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/checksum.h"
#include "inferd/forward/prefix_file.h"
#include "inferd/forward/scheduler.h"
#include "inferd/forward/sequence.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// The part of a sequence that others may reuse.
enum class PrefixReuse : uint8_t { kNone, kPrompts, kAll };

struct PrefixCacheOptions {
  PrefixReuse reuse = PrefixReuse::kAll;  // not kNone
  std::string identity;                   // everything that K and V depend on besides the tokens
  bool recurrent = false;                 // the model has recurrent layers
  uint32_t states = 0;                    // maximum number of kept states
  uint32_t slots = 0;                     // the scheduler's
  uint32_t short_rope_limit = 0;          // ShortRopeLimit() (model_shapes.h)
};

class PrefixCache final : public PrefixSource {
 public:
  struct Parts {  // all outlive the cache
    KvCache* kv = nullptr;
    RecurrentStates* states = nullptr;
    Queue* queue = nullptr;
    std::function<Sequence*(SequenceId)> find;  // finds a live sequence; null if none
  };
  PrefixCache(const PrefixCacheOptions& options, const Parts& parts);

  uint32_t SharedPages(SequenceId id) override;
  Start Begin(SequenceId id, uint32_t slot) override;
  void Leave(SequenceId id, uint32_t slot, uint32_t computed) override;

  // Notes that a committed step computed `sequence`, running in `slot`, up to this position.
  void Computed(const Sequence& sequence, uint32_t slot, uint32_t computed);

  // Forgets all pages after the KV cache was replaced by empty ones: prefixes are found again once computed
  // again.
  void PagesChanged();

  // Numbers of entries read from a file, or of those that it holds.
  struct Saved {
    uint64_t pages = 0;
    uint64_t states = 0;
    uint64_t damaged = 0;  // corrupt records, which are skipped
  };
  // Loads the entries of a file (prefix_file.h), as far as there is room, as if just computed, and saves new
  // ones to it from now on. Where there is no file, or one that is damaged or of another model, options or
  // program (`rejected` says why, else it is OK), an empty one of at most `limit` bytes is made. Other errors
  // of PrefixFile::Open and Create: nothing is loaded or saved. REQUIRES: nothing was computed yet.
  absl::StatusOr<Saved> OpenFile(const std::string& path, uint64_t limit, absl::Status* rejected);
  // Saves the entry that has waited longest; false: all are saved, or there is no file. After an error
  // nothing is saved any more.
  absl::StatusOr<bool> SaveNext();
  // Saves all entries and closes the file. NOT_FOUND: there is no file, or saving failed before.
  absl::StatusOr<Saved> CloseFile();

  // The first device error of a copy; it sticks.
  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint32_t kNoState = 0xffffffffu;
  // Minimum distance, in positions, between the last kept state and the point where pages would allow a
  // sequence to continue, for which another state is kept there: the extra step costs about as much as a few
  // dozen rows.
  static constexpr uint32_t kStateDistance = 64;

  // The cached part of a sequence; pages_ and digests_ belong to it.
  struct Match {
    uint32_t positions = 0;     // positions that need no computing
    uint32_t tail = kNoPage;    // page of the last positions % kPageTokens of them
    uint32_t state = kNoState;  // index in kept_
    uint32_t reach = 0;         // positions that the pages alone would allow
  };
  // The stored end of a page table.
  struct Chain {
    Digest128 digest;     // digest of the whole pages
    uint32_t stored = 0;  // positions
    uint32_t stop = 0;    // Start::stop
  };
  struct KeptState {
    Digest128 before;  // digest of the whole pages before it
    std::array<int32_t, kPageTokens> tail{};
    uint32_t position = 0;
    uint32_t state = 0;  // number in RecurrentStates
    uint64_t used = 0;   // time of last use
  };
  // The open file, and which of its slots hold which page or kept state (by its number in RecurrentStates).
  struct SaveFile {
    PrefixFile file;
    PrefixSlots pages;
    PrefixSlots states;
    uint64_t stamp = 0;  // of the newest record
  };

  Digest128 RootOf(const Sequence& sequence) const;
  absl::StatusOr<PrefixFileHead> FileHead(uint64_t limit) const;
  absl::Status LoadRecords(Saved* saved);
  absl::StatusOr<std::vector<uint64_t>> SlotsToLoad(uint64_t first, uint64_t count, uint64_t room,
                                                    PrefixSlots* slots);
  absl::Status TakePage(uint64_t slot, const PrefixRecord& record, absl::Span<const std::byte> content,
                        Saved* saved);
  absl::Status TakeState(uint64_t slot, const PrefixRecord& record, absl::Span<const std::byte> content,
                         Saved* saved);
  absl::Status CreateFile(const std::string& path, const PrefixFileHead& head);
  std::vector<uint32_t> StatesByUse() const;
  absl::Status SavePage(uint32_t page);
  absl::Status SaveState(uint32_t number);
  void DropState(std::vector<KeptState>::iterator state);
  Match Find(const Sequence& sequence);
  void FindPages(const Sequence& sequence, absl::Span<const int32_t> text);
  uint32_t WholePages() const;
  bool IsCovered(uint32_t position, const PrefixIndex::Part& part) const;
  void FindState(absl::Span<const int32_t> text, const PrefixIndex::Part& part, Match* match) const;
  void TakePages(const Match& match, uint32_t slot);
  bool TakeTail(const Match& match, absl::Span<const int32_t> text, uint32_t slot);
  uint32_t StoredEnd(const Sequence& sequence, uint32_t computed) const;
  void Store(const Sequence& sequence, uint32_t slot, uint32_t end);
  void KeepState(const Sequence& sequence, uint32_t slot, uint32_t computed);

  const PrefixCacheOptions options_;
  const Parts parts_;
  KvPages* const pages_of_;
  Digest128 secret_;
  PrefixIndex index_;
  std::vector<Chain> chains_;  // by slot
  std::vector<KeptState> kept_;
  uint64_t uses_ = 0;
  absl::Status status_;
  std::optional<SaveFile> file_;
  std::vector<std::byte> content_;  // of a record
  // For the sequence of the last lookup: its whole pages, kNoPage if missing, and the digests before each of
  // them and after the last.
  std::vector<uint32_t> pages_;
  std::vector<Digest128> digests_;
};

}  // namespace sluice::inferd
