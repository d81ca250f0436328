// VirtualLink: a link that exists only as arithmetic. Transfers of a number of bytes use the same schedule
// and the same model as weightd's throttled device `sim`, on a clock that the caller advances, so equal calls
// give equal times to the bit.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "common/link/link_model.h"
#include "common/link/transfer_schedule.h"

namespace sluice {

class VirtualLink {
 public:
  struct Options {
    LinkRate rate;
    uint64_t chunk_bytes = 1ull << 20;
    TransferSchedule::Options schedule;
  };
  // A transfer ended: its last byte arrived at `nanos`, or it was cancelled then with `bytes` delivered.
  using OnEnd = std::function<void(uint64_t number, int64_t nanos, uint64_t bytes, bool cancelled)>;

  VirtualLink(const Options& options, OnEnd on_end);

  // Requests `bytes` at time `nanos`. REQUIRES: a fresh number; times of all calls never decrease.
  void Submit(uint64_t number, LinkClass link_class, uint64_t bytes, int64_t nanos);
  // Chunks in flight still arrive, the others are dropped. `on_end` may run before this returns.
  void Cancel(uint64_t number, int64_t nanos);
  void Promote(uint64_t number, int64_t nanos);
  // True if a byte of it has been sent.
  bool Started(uint64_t number) const { return schedule_.Started(number); }

  // Processes all events up to `nanos`.
  void AdvanceTo(int64_t nanos);
  // Arrival time of the next chunk; -1: nothing is in flight.
  int64_t NextEvent() const { return in_flight_chunks_.empty() ? -1 : in_flight_chunks_.front().arrives; }
  // Bytes that have arrived.
  uint64_t delivered_bytes() const { return delivered_bytes_; }

 private:
  struct InFlightChunk {
    LinkChunk chunk;
    int64_t arrives = 0;
  };
  void Send(int64_t nanos);
  uint64_t TakeArrived(uint64_t number);

  const Options options_;
  const OnEnd on_end_;
  LinkModel model_;
  TransferSchedule schedule_;
  std::deque<InFlightChunk> in_flight_chunks_;  // in the order of their arrival
  std::unordered_map<uint64_t, bool> cancelled_;
  std::unordered_map<uint64_t, uint64_t> arrived_;  // bytes, of transfers with chunks outstanding
  uint64_t delivered_bytes_ = 0;
};

}  // namespace sluice
