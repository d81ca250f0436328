// TransferSchedule: which chunk of which transfer travels next. Pure decisions, no time, no bytes: weightd's
// transfer engine asks it for what its threads copy, a modelled link (virtual_link.h) for what it moves.
//
// A transfer is a sequence of chunks that go in order. Demand goes before prefetch; sessions with work in a
// class take turns by bytes; a link has a bounded number of bytes in flight, and one chunk of prefetches,
// which is submitted only while no demand waits for that link. So a demand never waits for more than what is
// in flight already.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace sluice {

enum class LinkClass : uint8_t { kDemand = 0, kPrefetch = 1 };

struct LinkTransfer {
  uint64_t number = 0;   // the caller's, used once
  uint64_t session = 0;  // whose share its bytes count against
  uint32_t link = 0;     // links come into being with their first transfer; each is one session's
  LinkClass link_class = LinkClass::kDemand;
  std::vector<uint32_t> chunks;  // bytes of each, at least one
};

struct LinkChunk {
  uint64_t number = 0;
  uint32_t index = 0;
  uint32_t bytes = 0;
  uint32_t link = 0;
};

class TransferSchedule {
 public:
  struct Options {
    // Bytes of a link in flight at most, but always at least `min_chunks` chunks.
    uint64_t window_bytes = 4ull << 20;
    uint32_t min_chunks = 2;
    uint32_t prefetch_chunks = 1;
  };
  enum class CancelResult {
    kUnknown,
    kEnded,    // nothing of it is in flight: it is forgotten
    kDraining  // what is in flight goes on; the Deliver() that ends it says so
  };

  explicit TransferSchedule(const Options& options) : options_(options) {}

  // REQUIRES: a fresh number, at least one chunk.
  void Add(LinkTransfer transfer);
  // The next chunk to submit, now in flight; none when nothing may go.
  std::optional<LinkChunk> Next();
  // The chunk has arrived. True: with it the transfer ended (delivered or cancelled), it is forgotten.
  bool Deliver(const LinkChunk& chunk);
  CancelResult Cancel(uint64_t number);
  // Makes a prefetch a demand. Unknown numbers are ignored.
  void Promote(uint64_t number);

  // The session is gone: its account is closed. REQUIRES: no transfer of it is left.
  void DropSession(uint64_t session) { sessions_.erase(session); }

  // Whether a chunk of it has been submitted. False for unknown numbers.
  bool Started(uint64_t number) const;
  bool empty() const { return transfers_.empty(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

 private:
  struct Entry {
    LinkTransfer transfer;
    uint32_t next = 0;  // chunk
    uint32_t in_flight = 0;
    uint32_t prefetches_in_flight = 0;  // of these, submitted as prefetch
    bool cancelled = false;
  };
  struct Link {
    std::deque<uint64_t> waiting[2];  // transfers with chunks to submit, by class
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight = 0;
    uint32_t prefetches = 0;  // chunks in flight of the class
  };
  struct Session {
    uint64_t turn = 0;  // bytes served, lifted to the others' when it had nothing to do
    uint32_t transfers = 0;
  };

  bool HasRoom(const Link& link, LinkClass link_class, uint32_t bytes) const;
  // The link whose head of this class goes next.
  Link* Choose(LinkClass link_class);
  LinkChunk Submit(Link* link, LinkClass link_class);
  void Unqueue(const Entry& entry);
  void Forget(uint64_t number);

  const Options options_;
  std::map<uint32_t, Link> links_;
  std::map<uint64_t, Session> sessions_;
  std::unordered_map<uint64_t, Entry> transfers_;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace sluice
