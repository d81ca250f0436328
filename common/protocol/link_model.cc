#include "common/protocol/link_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace sluice {
namespace {

constexpr double kMaxBytesPerSecond = 1e15;
constexpr double kMaxLatencyNanos = 10e9;

// Limits keep products and sums of nanoseconds within 64 bits for any input; NaN counts as "no limit",
// written as 0.
double Within(double value, double high) { return std::isnan(value) ? 0 : std::clamp(value, 0.0, high); }

}  // namespace

LinkRate MakeLinkRate(double gbps, double latency_us) {
  LinkRate rate;
  rate.bytes_per_second = static_cast<uint64_t>(std::llround(Within(gbps * 1e9, kMaxBytesPerSecond)));
  rate.latency_nanos = std::llround(Within(latency_us * 1e3, kMaxLatencyNanos));
  return rate;
}

double LinkModel::Nanos(uint64_t bytes) const {
  return rate_.bytes_per_second == 0
             ? 0
             : static_cast<double>(bytes) * 1e9 / static_cast<double>(rate_.bytes_per_second);
}

int64_t LinkModel::Book(uint64_t bytes, int64_t ready_nanos, int64_t now_nanos) {
  const int64_t submitted = std::clamp(ready_nanos, now_nanos - kMaxBackdateNanos, now_nanos);
  const int64_t first = submitted + rate_.latency_nanos;
  // The link was idle, so its state restarts; the fraction of a nanosecond belongs to earlier transfers.
  if (first > free_nanos_) {
    free_nanos_ = first;
    fraction_ = 0;
  }
  const double taken = Nanos(bytes) + fraction_;
  // Carries the fraction to the next transfer, else many small transfers would each gain up to a nanosecond
  // and the modelled rate would be too high.
  const double whole = std::floor(taken);
  free_nanos_ += static_cast<int64_t>(whole);
  fraction_ = taken - whole;
  return free_nanos_;
}

namespace {

size_t Index(RequestClass request_class) { return static_cast<size_t>(request_class); }

}  // namespace

void TransferSchedule::Add(LinkTransfer transfer) {
  Session& session = sessions_[transfer.session];
  if (session.transfers++ == 0) {
    // Idle time earns no credit: a session starts level with the least served active session.
    std::optional<uint64_t> lowest_turn;
    for (const auto& [id, other] : sessions_) {
      if (&other != &session && other.transfers != 0) {
        lowest_turn = std::min(lowest_turn.value_or(other.turn), other.turn);
      }
    }
    session.turn = std::max(session.turn, lowest_turn.value_or(session.turn));
  }
  const uint64_t number = transfer.number;
  links_[transfer.link].waiting[Index(transfer.request_class)].push_back(number);
  transfers_[number].transfer = std::move(transfer);
}

// A prefetch never delays a demand by more than the chunks already in flight. min_chunks keeps the link busy
// if one chunk is larger than the window.
bool TransferSchedule::HasCapacity(const Link& link, RequestClass request_class, uint32_t bytes) const {
  if (request_class == RequestClass::kPrefetch &&
      (link.prefetches >= options_.prefetch_chunks || !link.waiting[Index(RequestClass::kDemand)].empty())) {
    return false;
  }
  return link.in_flight < options_.min_chunks || link.in_flight_bytes + bytes <= options_.window_bytes;
}

// Fair queueing: among the links that may send, picks the link whose oldest transfer belongs to the session
// with the fewest bytes sent.
TransferSchedule::Link* TransferSchedule::Choose(RequestClass request_class) {
  Link* chosen = nullptr;
  uint64_t lowest_turn = 0;
  for (auto& [id, link] : links_) {
    const auto& waiting = link.waiting[Index(request_class)];
    if (waiting.empty()) {
      continue;
    }
    const Entry& head = transfers_.at(waiting.front());
    const uint64_t turn = sessions_.at(head.transfer.session).turn;
    if (HasCapacity(link, request_class, head.transfer.chunks[head.next]) &&
        (chosen == nullptr || turn < lowest_turn)) {
      chosen = &link;
      lowest_turn = turn;
    }
  }
  return chosen;
}

LinkChunk TransferSchedule::Submit(Link* link, RequestClass request_class) {
  auto& waiting = link->waiting[Index(request_class)];
  Entry& entry = transfers_.at(waiting.front());
  LinkChunk chunk;
  chunk.number = entry.transfer.number;
  chunk.index = entry.next++;
  chunk.bytes = entry.transfer.chunks[chunk.index];
  chunk.link = entry.transfer.link;
  ++entry.in_flight;
  if (entry.next == entry.transfer.chunks.size()) {
    waiting.pop_front();
  }
  Session& session = sessions_.at(entry.transfer.session);
  session.turn += chunk.bytes;
  link->in_flight_bytes += chunk.bytes;
  ++link->in_flight;
  in_flight_bytes_ += chunk.bytes;
  if (request_class == RequestClass::kPrefetch) {
    ++link->prefetches;
    ++entry.prefetches_in_flight;
  }
  return chunk;
}

std::optional<LinkChunk> TransferSchedule::Next() {
  // Demands first: a caller waits for them.
  for (RequestClass request_class : {RequestClass::kDemand, RequestClass::kPrefetch}) {
    if (Link* link = Choose(request_class)) {
      return Submit(link, request_class);
    }
  }
  return std::nullopt;
}

bool TransferSchedule::Deliver(const LinkChunk& chunk) {
  auto found = transfers_.find(chunk.number);
  if (found == transfers_.end()) {
    return false;
  }
  Entry& entry = found->second;
  Link& link = links_.at(chunk.link);
  link.in_flight_bytes -= chunk.bytes;
  --link.in_flight;
  in_flight_bytes_ -= chunk.bytes;
  --entry.in_flight;
  if (entry.prefetches_in_flight != 0) {
    --entry.prefetches_in_flight;
    --link.prefetches;
  }
  // A cancelled transfer ends only here, when its last chunk in flight has arrived: until then the copier
  // still writes to its destination.
  const bool ended = entry.in_flight == 0 && (entry.cancelled || entry.next == entry.transfer.chunks.size());
  if (ended) {
    Forget(chunk.number);
  }
  return ended;
}

void TransferSchedule::Unqueue(const Entry& entry) {
  auto& waiting = links_.at(entry.transfer.link).waiting[Index(entry.transfer.request_class)];
  waiting.erase(std::remove(waiting.begin(), waiting.end(), entry.transfer.number), waiting.end());
}

TransferSchedule::CancelResult TransferSchedule::Cancel(uint64_t number) {
  auto found = transfers_.find(number);
  if (found == transfers_.end()) {
    return CancelResult::kUnknown;
  }
  Entry& entry = found->second;
  Unqueue(entry);
  if (entry.in_flight != 0) {
    entry.cancelled = true;
    return CancelResult::kDraining;
  }
  Forget(number);
  return CancelResult::kEnded;
}

void TransferSchedule::Promote(uint64_t number) {
  auto found = transfers_.find(number);
  if (found == transfers_.end() || found->second.transfer.request_class == RequestClass::kDemand) {
    return;
  }
  Entry& entry = found->second;
  Unqueue(entry);
  entry.transfer.request_class = RequestClass::kDemand;
  Link& link = links_.at(entry.transfer.link);
  if (!entry.cancelled && entry.next != entry.transfer.chunks.size()) {
    link.waiting[Index(RequestClass::kDemand)].push_back(number);
  }
  // Its chunks in flight count as a demand's from now on.
  link.prefetches -= std::exchange(entry.prefetches_in_flight, 0);
}

void TransferSchedule::Forget(uint64_t number) {
  auto found = transfers_.find(number);
  const uint64_t id = found->second.transfer.session;
  const uint32_t link = found->second.transfer.link;
  transfers_.erase(found);
  --sessions_.at(id).transfers;
  const Link& left = links_.at(link);
  if (left.in_flight == 0 && left.waiting[0].empty() && left.waiting[1].empty()) {
    links_.erase(link);
  }
}

bool TransferSchedule::Started(uint64_t number) const {
  auto found = transfers_.find(number);
  return found != transfers_.end() && found->second.next != 0;
}

}  // namespace sluice
