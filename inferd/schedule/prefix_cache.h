// What running and past sequences computed of their texts, for others that begin alike: pages of the KV cache
// found by content (prefix_index.h), and recurrent states at some positions (delta_states.h).
//
// Whole pages are held together with whoever else has them. Of a page that goes on differently, or whose
// writer still runs, the common beginning is copied; one that nobody holds and that is used to its end is
// taken over. So a text that continues another computes its own tokens and no others.
//
// A model with recurrent layers can go on only from a position whose state was kept: the end of a prompt, the
// end of a sequence (an answer's, or where it was cancelled or preempted), and where two texts were seen to
// part, at which a later prompt stops for a step. The least used state makes room for another.
//
// Which positions count is PrefixReuse's: what a policy computes of a generated token may depend on more than
// the text, and then only prompts are stored, and only for prompts.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checksum.h"
#include "inferd/model/delta_states.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/prefix_index.h"
#include "inferd/schedule/prefix_file.h"
#include "inferd/schedule/scheduler.h"
#include "inferd/schedule/sequence.h"
#include "kernels/backend.h"

namespace sluice {

// What of a sequence may serve others.
enum class PrefixReuse : uint8_t { kNone, kPrompts, kAll };

struct PrefixCacheOptions {
  PrefixReuse reuse = PrefixReuse::kAll;  // not kNone
  std::string identity;                   // of all that K and V depend on beside the text
  bool recurrent = false;                 // the model has recurrent layers
  uint32_t states = 0;                    // states kept at most
  uint32_t slots = 0;                     // of the scheduler
  uint32_t short_text_limit = 0;          // ShortTextLimit() (model_shapes.h)
};

class PrefixCache final : public PrefixSource {
 public:
  struct Parts {  // all outlive the cache
    KvCache* kv = nullptr;
    DeltaStates* states = nullptr;
    Queue* queue = nullptr;
    std::function<Sequence*(SequenceId)> find;  // of live sequences
  };
  PrefixCache(const PrefixCacheOptions& options, const Parts& parts);

  uint32_t SharedPages(SequenceId id) override;
  Start Begin(SequenceId id, uint32_t slot) override;
  void Leave(SequenceId id, uint32_t slot, uint32_t computed) override;

  // A step that counts computed `sequence`, which runs in `slot`, up to this position.
  void Computed(const Sequence& sequence, uint32_t slot, uint32_t computed);

  // The KV cache has other pages now, and nothing in them: texts are found no more until they are computed
  // again.
  void PagesChanged() { index_ = PrefixIndex(pages_of_->total()); }

  // What a file was given, or gave.
  struct Saved {
    uint64_t pages = 0;
    uint64_t states = 0;
    uint64_t damaged = 0;  // records that were not what had been written, and are left out
  };
  // Puts what is known into a file of at most `limit` bytes (prefix_file.h), what was used last before the
  // rest. An error leaves an older file as it was.
  absl::StatusOr<Saved> Save(const std::string& path, uint64_t limit) const;
  // Takes what a file has, as far as there is room, as if it had just been computed. Errors of
  // PrefixFileReader::Open. REQUIRES: nothing was computed yet.
  absl::StatusOr<Saved> Load(const std::string& path);

  // The first error of the device that copying met; it sticks.
  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint32_t kNoState = 0xffffffffu;
  // Positions between where a text could go on and where a state is, above which it pays to keep another
  // there: a step of its own costs about as much as a few dozen rows.
  static constexpr uint32_t kStateDistance = 64;

  // What there is of a text. `pages_` and `digests_` belong to it.
  struct Match {
    uint32_t positions = 0;     // that need no computing
    uint32_t tail = kNoPage;    // where the last positions % kPageTokens of them are
    uint32_t state = kNoState;  // index in kept_
    uint32_t reach = 0;         // what the pages alone would allow
  };
  // A page table's end, as far as it is stored.
  struct Chain {
    Digest128 digest;     // of the whole pages
    uint32_t stored = 0;  // positions
    uint32_t stop = 0;    // Start::stop
  };
  struct KeptState {
    Digest128 before;  // of the whole pages in front
    std::array<int32_t, kPageTokens> tail{};
    uint32_t position = 0;
    uint32_t state = 0;  // of DeltaStates
    uint64_t used = 0;   // when
  };

  Digest128 RootOf(const Sequence& sequence) const;
  absl::StatusOr<PrefixFileHead> FileHead() const;
  std::vector<uint32_t> PagesByUse() const;
  absl::Status WriteRecords(absl::Span<const uint32_t> pages, absl::Span<const KeptState> states,
                            PrefixFileWriter* writer) const;
  absl::Status ReadRecords(PrefixFileReader* reader, Saved* saved);
  absl::Status TakePage(const PrefixRecord& record, absl::Span<const std::byte> content, Saved* saved);
  absl::Status TakeState(const PrefixRecord& record, absl::Span<const std::byte> content, Saved* saved);
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
  // Of the text that was looked at last: its whole pages, kNoPage where there is none, and the digests in
  // front of each of them and behind the last.
  std::vector<uint32_t> pages_;
  std::vector<Digest128> digests_;
};

}  // namespace sluice
