#include "inferd/sim/virtual_link.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice::inferd {

VirtualLink::VirtualLink(const Options& options, const Clock* clock)
    : options_(options), clock_(clock), model_(options.rate), schedule_(options.schedule) {}

void VirtualLink::Submit(uint64_t number, RequestClass request_class, absl::Span<const uint64_t> tile_bytes) {
  Advance();
  Running& running = running_[number];
  running.submitted = clock_->NowNanos();
  LinkTransfer transfer;
  transfer.number = number;
  transfer.request_class = request_class;
  uint64_t all = 0;
  for (uint64_t bytes : tile_bytes) {
    all += bytes;
    running.tile_ends.push_back(all);
    // A tile of no bytes is one empty chunk: it ends like any other, after the latency.
    do {
      const uint64_t chunk = std::min(bytes, options_.chunk_bytes);
      transfer.chunks.push_back(static_cast<uint32_t>(chunk));
      bytes -= chunk;
    } while (bytes != 0);
  }
  schedule_.Add(std::move(transfer));
  Send(clock_->NowNanos());
}

void VirtualLink::Cancel(uint64_t number) {
  Advance();
  const auto found = running_.find(number);
  if (found == running_.end()) {
    return;
  }
  found->second.cancelled = true;
  if (schedule_.Cancel(number) == TransferSchedule::CancelResult::kEnded) {
    EndTransfer(number, clock_->NowNanos());
  }
  Send(clock_->NowNanos());
}

bool VirtualLink::CancelIfNotStarted(uint64_t number) {
  Advance();
  if (!running_.contains(number) || schedule_.Started(number)) {
    return false;
  }
  Cancel(number);
  return true;
}

void VirtualLink::Promote(uint64_t number) {
  Advance();
  schedule_.Promote(number);
  Send(clock_->NowNanos());
}

uint32_t VirtualLink::landed(uint64_t number) const {
  if (const auto found = running_.find(number); found != running_.end()) {
    return found->second.landed;
  }
  const auto ended =
      std::find_if(ends_.begin(), ends_.end(), [number](const End& end) { return end.number == number; });
  return ended == ends_.end() ? 0 : ended->landed;
}

std::vector<VirtualLink::End> VirtualLink::TakeEnds() { return std::exchange(ends_, {}); }

void VirtualLink::Send(int64_t nanos) {
  while (const std::optional<LinkChunk> chunk = schedule_.Next()) {
    in_flight_chunks_.push_back({*chunk, model_.Book(chunk->bytes, nanos, nanos)});
  }
}

void VirtualLink::Advance() {
  const int64_t now = clock_->NowNanos();
  while (!in_flight_chunks_.empty() && in_flight_chunks_.front().arrives <= now) {
    const InFlightChunk arrived = in_flight_chunks_.front();
    in_flight_chunks_.pop_front();
    Arrive(arrived);
  }
}

void VirtualLink::Arrive(const InFlightChunk& arrived) {
  const uint64_t number = arrived.chunk.number;
  Running& running = running_.at(number);
  running.bytes += arrived.chunk.bytes;
  while (!running.cancelled && running.landed < running.tile_ends.size() &&
         running.tile_ends[running.landed] <= running.bytes) {
    ++running.landed;
  }
  if (schedule_.Deliver(arrived.chunk)) {
    EndTransfer(number, arrived.arrives);
  }
  // Chunks that fit now leave at the delivery's time: the order on the link depends on virtual times alone.
  Send(arrived.arrives);
}

void VirtualLink::EndTransfer(uint64_t number, int64_t nanos) {
  const Running ended = running_.extract(number).mapped();
  ends_.push_back({number, nanos, nanos - ended.submitted, ended.bytes, ended.landed, ended.cancelled});
}

}  // namespace sluice::inferd
