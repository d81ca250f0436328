// Announcements of new and retired segments to clients.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/base/clock.h"
#include "common/protocol/shared_memory.h"
#include "weightd/engine/session.h"
#include "weightd/engine/side_sockets.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/fetcher.h"

namespace sluice::weightd {

// Retired segments, and the sessions that have not unmapped them yet.
class RetiredSegments {
 public:
  // Adds a segment of `bytes` that `sessions`, at least one, may have mapped; retired at `now`, nanoseconds.
  void Add(uint32_t segment, std::set<uint64_t> sessions, uint64_t bytes, int64_t now);
  // True: that was the last session, and no session has the segment mapped any more.
  bool Unmapped(uint64_t session, uint32_t segment);
  // Retired segments that the session has not unmapped.
  std::vector<uint32_t> MappedBy(uint64_t session) const;
  // Bytes of segments that were retired at least `nanos` ago.
  uint64_t BytesSince(int64_t now, int64_t nanos) const;
  // Time at which the next segment will have been retired `nanos` ago; 0: there is none.
  int64_t NextSince(int64_t now, int64_t nanos) const;

 private:
  struct Retired {
    std::set<uint64_t> sessions;  // sessions that have not unmapped it
    uint64_t bytes = 0;
    int64_t since_nanos = 0;
  };
  std::map<uint32_t, Retired> retired_;  // by segment
};

// Announces new and retired segments to every client, and drops a retired one when the last client has
// unmapped it.
//
// Thread safety: thread-compatible; the core's lock guards it.
class SegmentNotices {
 public:
  struct Options {
    // A session that has not unmapped a retired segment after this time is slow: fills use other room if
    // there is any.
    int64_t slow_nanos = 0;
    // After this time fills no longer wait for the segment at all.
    int64_t lost_nanos = 0;
  };

  // All borrowed.
  SegmentNotices(const Options& options, DramTier* tier, Fetcher* fetcher, SessionTable* sessions,
                 SideSockets* side, const Clock* clock)
      : options_(options), tier_(tier), fetcher_(fetcher), sessions_(sessions), side_(side), clock_(clock) {}

  // Announces all existing segments to a session that has just attached, and then READY.
  void Welcome(Session* session);
  void OnAdded(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory);
  void OnRetired(uint32_t segment);
  void OnUnmapped(uint64_t session, uint32_t segment);
  // Notes that the session's process is gone or counts as gone, and its mappings with it.
  void OnSessionEnd(uint64_t session);
  // Reports to the tier the retired segments that fills waited too long for, and retries these fills when the
  // set changed.
  void NoteSlow(int64_t now);
  // Time at which the next session becomes slow; 0: none will.
  int64_t NextSlow(int64_t now) const { return retired_.NextSince(now, options_.slow_nanos); }

 private:
  void Announce(Session* session, uint32_t segment, const std::shared_ptr<const SharedMemory>& memory);

  const Options options_;
  DramTier* const tier_;
  Fetcher* const fetcher_;
  SessionTable* const sessions_;
  SideSockets* const side_;
  const Clock* const clock_;
  RetiredSegments retired_;
  // Part of these, as last reported to the tier.
  uint64_t slow_bytes_ = 0;
  uint64_t lost_bytes_ = 0;
};

}  // namespace sluice::weightd
