// A link as arithmetic: arrival times by rate and latency, and the order of chunks.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/protocol/request_class.h"

namespace sluice {

// LinkModel: arrival times of bytes over a link of a given rate and latency, on the caller's clock: weightd's
// throttled device `sim` uses real time, a modelled link uses virtual time.
//
// The model is a token bucket. Copies leave one after another at the rate, each no earlier than its latency
// after its submission, so queued copies hide each other's latency, as on several streams. A submitter that
// overslept may have its copy counted from the moment at which it should have woken.
struct LinkRate {
  uint64_t bytes_per_second = 0;  // 0: no limit
  int64_t latency_nanos = 0;      // from a copy's submission to its first byte

  bool throttled() const { return bytes_per_second != 0 || latency_nanos != 0; }
  bool operator==(const LinkRate&) const = default;
};

// `gbps`: 1e9 bytes a second, 0 for no limit. Negative and out-of-range values are clamped.
LinkRate MakeLinkRate(double gbps, double latency_us);

class LinkModel {
 public:
  // Depth of the bucket: Book() reaches back this far for a submitter that overslept. Within any second this
  // adds at most 0.2 % to the rate.
  static constexpr int64_t kMaxBackdateNanos = 2'000'000;

  explicit LinkModel(const LinkRate& rate) : rate_(rate) {}

  // Sends a copy of `bytes` that could have been submitted at `ready_nanos`; returns when its last byte
  // arrives, which may be before `now_nanos` when the submitter overslept. `now_nanos` never runs backwards.
  int64_t Book(uint64_t bytes, int64_t ready_nanos, int64_t now_nanos);

  // Nanoseconds that `bytes` take at the rate, the latency left out.
  double Nanos(uint64_t bytes) const;
  const LinkRate& rate() const { return rate_; }

 private:
  const LinkRate rate_;
  int64_t free_nanos_ = 0;  // the last booked byte's arrival
  double fraction_ = 0;     // of a nanosecond, to be added to free_nanos_
};

// TransferSchedule: picks the next chunk to send. Pure decisions, without time or bytes: weightd's transfer
// engine uses it for its copy threads, a virtual link (inferd/sim/virtual_link.h) for its simulated
// transfers.
//
// A transfer is a sequence of chunks sent in order. Demand precedes prefetch; sessions with work in a class
// take turns by bytes. A link has a bounded number of bytes in flight and at most one prefetch chunk, which
// is submitted only while no demand waits for that link. So a demand never waits for more than the chunks
// already in flight.
//
// Thread safety: thread-compatible.

struct LinkTransfer {
  uint64_t number = 0;   // the caller's, used once
  uint64_t session = 0;  // session to which its bytes are charged
  uint32_t link = 0;     // links are created by their first transfer; each belongs to one session
  RequestClass request_class = RequestClass::kDemand;
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
    // Maximum bytes in flight on a link, but always at least `min_chunks` chunks.
    uint64_t window_bytes = 4ull << 20;
    uint32_t min_chunks = 2;
    uint32_t prefetch_chunks = 1;
  };
  enum class CancelResult {
    kUnknown,
    kEnded,    // none of its chunks is in flight: the transfer is removed
    kDraining  // chunks in flight continue; the Deliver() that ends the transfer returns true
  };

  explicit TransferSchedule(const Options& options) : options_(options) {}

  // REQUIRES: a fresh number, at least one chunk.
  void Add(LinkTransfer transfer);
  // The next chunk to submit, now in flight; none if nothing may be sent.
  std::optional<LinkChunk> Next();
  // Marks the chunk as arrived. Returns true if the transfer ended with it (delivered or cancelled) and is
  // removed.
  bool Deliver(const LinkChunk& chunk);
  CancelResult Cancel(uint64_t number);
  // Turns a prefetch into a demand. Unknown numbers are ignored.
  void Promote(uint64_t number);

  // Closes the account of a session that ended. REQUIRES: the session has no transfer left.
  void DropSession(uint64_t session) { sessions_.erase(session); }

  // True if a chunk of it has been submitted. False for unknown numbers.
  bool Started(uint64_t number) const;
  bool empty() const { return transfers_.empty(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

 private:
  struct Entry {
    LinkTransfer transfer;
    uint32_t next = 0;  // chunk
    uint32_t in_flight = 0;
    uint32_t prefetches_in_flight = 0;  // those of in_flight submitted as prefetch
    bool cancelled = false;
  };
  struct Link {
    std::deque<uint64_t> waiting[2];  // transfers with chunks to submit, by class
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight = 0;
    uint32_t prefetches = 0;  // chunks in flight of the class
  };
  struct Session {
    uint64_t turn = 0;  // bytes served, raised to the others' level after an idle time
    uint32_t transfers = 0;
  };

  bool HasCapacity(const Link& link, RequestClass request_class, uint32_t bytes) const;
  // The next link to serve in this class, by the head of its queue.
  Link* Choose(RequestClass request_class);
  LinkChunk Submit(Link* link, RequestClass request_class);
  void Unqueue(const Entry& entry);
  void Forget(uint64_t number);

  const Options options_;
  std::map<uint32_t, Link> links_;
  std::map<uint64_t, Session> sessions_;
  std::unordered_map<uint64_t, Entry> transfers_;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace sluice
