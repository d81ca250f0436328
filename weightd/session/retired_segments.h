// Retired segments, and which sessions have not unmapped them yet.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace sluice {

class RetiredSegments {
 public:
  // `sessions`, at least one, may have the segment of `bytes` mapped; retired at `now`, nanoseconds.
  void Add(uint32_t segment, std::set<uint64_t> sessions, uint64_t bytes, int64_t now);
  // True: that was the last session, and nobody has the segment mapped any more.
  bool Unmapped(uint64_t session, uint32_t segment);
  // Those that the session has not unmapped.
  std::vector<uint32_t> MappedBy(uint64_t session) const;
  // Bytes of those retired `nanos` ago or before.
  uint64_t BytesSince(int64_t now, int64_t nanos) const;
  // When the next of them will have been retired `nanos` ago; 0: none will.
  int64_t NextSince(int64_t now, int64_t nanos) const;

 private:
  struct Retired {
    std::set<uint64_t> sessions;  // that have not unmapped it
    uint64_t bytes = 0;
    int64_t since_nanos = 0;
  };
  std::map<uint32_t, Retired> retired_;  // by segment
};

}  // namespace sluice
