// VirtualLink: a link that exists only as arithmetic. Transfers of tiles use the same schedule and the same
// model as weightd's throttled device `sim`, on a clock that the caller advances, so equal calls give equal
// times to the bit.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/protocol/link_model.h"

namespace sluice::inferd {

class VirtualLink {
 public:
  struct Options {
    LinkRate rate;
    uint64_t chunk_bytes = 1ull << 20;
    TransferSchedule::Options schedule;
  };
  // A transfer that ended: its last byte arrived, or it was cancelled.
  struct End {
    uint64_t number = 0;
    int64_t nanos = 0;
    int64_t took_nanos = 0;  // since its submission
    uint64_t bytes = 0;      // that arrived
    uint32_t landed = 0;     // leading tiles that arrived before it was cancelled
    bool cancelled = false;
  };

  // `clock` outlives this object, and never runs backwards.
  VirtualLink(const Options& options, const Clock* clock);

  // Requests tiles of so many bytes. REQUIRES: a fresh number, at least one tile.
  void Submit(uint64_t number, RequestClass request_class, absl::Span<const uint64_t> tile_bytes);
  // Chunks in flight still arrive, the others are dropped. Unknown numbers are ignored.
  void Cancel(uint64_t number);
  // Cancels only a transfer of which no chunk was sent. False: one was, or it is unknown.
  bool CancelIfNotStarted(uint64_t number);
  void Promote(uint64_t number);

  // Processes all events up to now.
  void Advance();
  // Each transfer once, in the order of their ends.
  std::vector<End> TakeEnds();
  bool HasEnds() const { return !ends_.empty(); }
  // Arrival time of the next chunk; -1: nothing is in flight.
  int64_t NextEvent() const { return in_flight_chunks_.empty() ? -1 : in_flight_chunks_.front().arrives; }
  // Leading tiles that arrived of a transfer that was not taken as ended.
  uint32_t landed(uint64_t number) const;

 private:
  struct InFlightChunk {
    LinkChunk chunk;
    int64_t arrives = 0;
  };
  struct Running {
    std::vector<uint64_t> tile_ends;  // bytes of the transfer up to each tile's last
    int64_t submitted = 0;
    uint64_t bytes = 0;
    uint32_t landed = 0;
    bool cancelled = false;
  };
  void Send(int64_t nanos);
  void Arrive(const InFlightChunk& arrived);
  void EndTransfer(uint64_t number, int64_t nanos);

  const Options options_;
  const Clock* const clock_;
  LinkModel model_;
  TransferSchedule schedule_;
  std::deque<InFlightChunk> in_flight_chunks_;  // in the order of their arrival
  std::unordered_map<uint64_t, Running> running_;
  std::vector<End> ends_;
};

}  // namespace sluice::inferd
