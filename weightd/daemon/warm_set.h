// weightd as its own client: a session with itself, the warm sets that it prefetches, and the self-test.
//
// Thread safety: PrefetchSession is thread-compatible, WarmSets is thread-safe; FetchForTest blocks its
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/rings.h"
#include "common/protocol/shared_memory.h"
#include "weightd/engine/weight_store.h"

namespace sluice::weightd {

// PrefetchSession: a session of weightd with itself. It requests extents like any client, over rings, but
// reads none of their bytes.
//
// Thread safety: thread-compatible.
class PrefetchSession {
 public:
  // Opens and joins a session on one pack. `store` is borrowed. Errors of WeightStore::OpenSession.
  static absl::StatusOr<std::unique_ptr<PrefetchSession>> Open(WeightStore* store, uint32_t pack,
                                                               const std::string& name);
  ~PrefetchSession();

  // Requests `extent`. False: the ring is full.
  bool Request(uint32_t extent, RequestClass request_class);
  bool Prefetch(uint32_t extent) { return Request(extent, RequestClass::kPrefetch); }
  // The next completion; none if there is none yet. FAILED_PRECONDITION: the session was ended.
  absl::StatusOr<std::optional<CompletionEntry>> Take();
  // Sleeps until Take() may return a completion or `event` is readable.
  void Sleep(int event);

  uint32_t outstanding() const { return outstanding_; }

 private:
  PrefetchSession(WeightStore* store, uint64_t session) : store_(store), session_(session) {}
  void AnswerSide();

  WeightStore* const store_;
  const uint64_t session_;
  UniqueFd side_;
  int server_bell_ = -1;  // the store's, like the next
  int client_bell_ = -1;
  Mapping control_;
  std::optional<SubmissionWriter> submissions_;
  std::optional<CompletionReader> completions_;
  uint32_t outstanding_ = 0;
  uint64_t next_id_ = 1;
  bool ended_ = false;
};

// Warm sets: lists of experts that are prefetched before any request, such as a model's most used ones.
//
// Thread safety: WarmSets is thread-safe; the rest are plain values and pure functions.
struct WarmExpert {
  uint32_t layer = 0;
  uint32_t expert = 0;
};

struct WarmSet {
  bool dense = false;  // the dense extents come first
  std::vector<WarmExpert> experts;
};

// Progress of a pack's warm set.
struct WarmProgress {
  uint32_t pack = 0;
  uint32_t extents = 0;  // extents in the set
  uint32_t done = 0;     // those found in memory or read
  bool reading = false;
};

// The extents of `set`, in its order. REQUIRES: its experts are the pack's.
std::vector<uint32_t> ExtentsOf(const Pack& pack, const WarmSet& set);

// Keeps one set per pack and reads it by prefetches of a session of its own, on a thread of its own. A pack
// without a set may be preloaded: read whole, while nothing else is read.
class WarmSets {
 public:
  // `store` is borrowed and outlives this object.
  static absl::StatusOr<std::unique_ptr<WarmSets>> Create(WeightStore* store, LogFn log);
  ~WarmSets();

  // Begins to preload every pack that has neither a set nor been preloaded, if the memory budget holds all
  // packs: a preload never evicts. Otherwise nothing happens.
  void Preload();

  // Replaces the pack's set and begins to read it; returns the number of its extents. INVALID_ARGUMENT naming
  // an expert that does not exist; UNAVAILABLE: draining. REQUIRES: the store has the pack.
  absl::StatusOr<uint32_t> Set(uint32_t pack, WarmSet set);
  // The current set; empty before the first.
  WarmSet Get(uint32_t pack) const;
  // Progress of every pack that has a set or is preloaded.
  std::vector<WarmProgress> Progress() const;

 private:
  WarmSets(WeightStore* store, LogFn log, UniqueFd event)
      : store_(store), log_(std::move(log)), event_(std::move(event)) {}
  enum class Pace : uint8_t {
    kFull,  // as many requests at once as keep the reader busy
    kIdle   // two at a time, while nothing else has been read for a while
  };
  static const char* NameOf(Pace pace);
  void Begin(uint32_t pack, uint32_t extents) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void Warm(uint32_t pack, const WarmSet& set, Pace pace);
  // Reads the extents, as far as they fit; returns the number of requests.
  size_t Read(uint32_t pack, const std::vector<uint32_t>& extents, Pace pace);
  // Sleeps until for a while no reads but `own_bytes` were in flight, or the pack's reading is pointless.
  // `last_read`: when others were last seen to read.
  void AwaitIdle(uint32_t pack, uint64_t own_bytes, absl::Time* last_read);
  void NoteDone(uint32_t pack);
  // True if a newer set of the pack, draining, or the end makes it pointless to go on.
  bool Superseded(uint32_t pack) const;

  WeightStore* const store_;
  const LogFn log_;
  const UniqueFd event_;  // eventfd: a new set, or the end
  mutable Mutex mutex_;
  std::map<uint32_t, WarmSet> sets_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, WarmProgress> progress_ ABSL_GUARDED_BY(mutex_);
  // Packs whose set, or without one whose preload, has not begun.
  std::set<uint32_t> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> thread_ ABSL_GUARDED_BY(mutex_);
};

// weightd's self-test: it opens a session with itself and fetches one extent over its rings.
//
// Thread safety: a free function; it blocks its thread.

// Fetches the smallest extent of `pack`; if that fails, the smallest of the pack's other file, so that one
// bad block does not prevent serving everything else. The error of the last attempt, or DEADLINE_EXCEEDED
// after the timeout.
absl::Status FetchForTest(WeightStore* store, uint32_t pack, absl::Duration timeout);

}  // namespace sluice::weightd
