#include "common/link/virtual_link.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice {

VirtualLink::VirtualLink(const Options& options, OnEnd on_end)
    : options_(options), on_end_(std::move(on_end)), model_(options.rate), schedule_(options.schedule) {}

void VirtualLink::Submit(uint64_t number, LinkClass link_class, uint64_t bytes, int64_t nanos) {
  AdvanceTo(nanos);
  LinkTransfer transfer;
  transfer.number = number;
  transfer.link_class = link_class;
  // A transfer of no bytes is one empty chunk: it ends like any other, after the latency.
  do {
    const uint64_t chunk = std::min(bytes, options_.chunk_bytes);
    transfer.chunks.push_back(static_cast<uint32_t>(chunk));
    bytes -= chunk;
  } while (bytes != 0);
  schedule_.Add(std::move(transfer));
  Send(nanos);
}

void VirtualLink::Cancel(uint64_t number, int64_t nanos) {
  AdvanceTo(nanos);
  const TransferSchedule::CancelResult result = schedule_.Cancel(number);
  if (result == TransferSchedule::CancelResult::kEnded) {
    on_end_(number, nanos, TakeArrived(number), true);
  } else if (result == TransferSchedule::CancelResult::kDraining) {
    cancelled_[number] = true;
  }
  Send(nanos);
}

void VirtualLink::Promote(uint64_t number, int64_t nanos) {
  AdvanceTo(nanos);
  schedule_.Promote(number);
  Send(nanos);
}

uint64_t VirtualLink::TakeArrived(uint64_t number) {
  const auto found = arrived_.find(number);
  const uint64_t bytes = found == arrived_.end() ? 0 : found->second;
  arrived_.erase(number);
  return bytes;
}

void VirtualLink::Send(int64_t nanos) {
  while (const std::optional<LinkChunk> chunk = schedule_.Next()) {
    in_flight_chunks_.push_back({*chunk, model_.Book(chunk->bytes, nanos, nanos)});
  }
}

void VirtualLink::AdvanceTo(int64_t nanos) {
  while (!in_flight_chunks_.empty() && in_flight_chunks_.front().arrives <= nanos) {
    const InFlightChunk arrived = in_flight_chunks_.front();
    in_flight_chunks_.pop_front();
    delivered_bytes_ += arrived.chunk.bytes;
    arrived_[arrived.chunk.number] += arrived.chunk.bytes;
    const bool ended = schedule_.Deliver(arrived.chunk);
    // Chunks that fit after the delivery leave at the delivery's time, before on_end_ can submit more: the
    // order on the link then depends on virtual times alone.
    Send(arrived.arrives);
    if (ended) {
      const uint64_t number = arrived.chunk.number;
      on_end_(number, arrived.arrives, TakeArrived(number), cancelled_.erase(number) != 0);
    }
  }
}

}  // namespace sluice
