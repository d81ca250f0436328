// Retired segments, and the sessions that have not unmapped them yet.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace sluice::weightd {

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

}  // namespace sluice::weightd
