#include "weightd/store/read_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::weightd {

absl::StatusOr<int> BlockReader::RegisterFile(const std::string& path, std::unique_ptr<ReadFile> /*file*/) {
  return absl::UnimplementedError(
      absl::StrCat(path, " is served in place, which takes reads by threads (--io pread)"));
}

absl::Status CheckLanded(const LandedChunk& landed, ReadOutcome* outcome) {
  const ReadChunk& chunk = landed.chunk;
  const ReadJob& job = chunk.read->job;
  *outcome = landed.range.outcome;
  absl::Status status = StatusOfRange(landed.range, landed.path, chunk.length, job.offset + chunk.offset);
  if (status.ok() && job.check) {
    status = job.check(chunk.offset, std::span<const std::byte>(job.dest + chunk.offset, chunk.length));
    *outcome = status.ok() ? *outcome : ReadOutcome::kCorrupt;
  }
  return status;
}

std::string DescribeReads(const char* engine, absl::Span<const OpenFile> files) {
  std::string how;
  for (const OpenFile& file : files) {
    how = how.empty() || file.file->how() != "O_DIRECT" ? file.file->how() : how;
  }
  return how.empty() ? engine : absl::StrCat(engine, ", ", how);
}

ReadQueue::ReadQueue(const ReadLimits& limits)
    : limits_{std::min(limits.chunk_bytes, kMaxReadBytes), limits.in_flight_bytes, limits.prefetch_bytes} {}

void ReadQueue::Add(ReadJob job) {
  auto read = std::make_shared<QueuedRead>();
  read->job = std::move(job);
  by_tag_[read->job.tag] = read;
  line(*read).push_back(std::move(read));
}

void ReadQueue::Promote(uint64_t tag) {
  auto found = by_tag_.find(tag);
  if (found == by_tag_.end() || found->second->job.request_class == RequestClass::kDemand) {
    return;
  }
  std::shared_ptr<QueuedRead> read = found->second;
  read->job.request_class = RequestClass::kDemand;
  if (read->job.urgent) {
    return;
  }
  auto at = std::find(prefetch_.begin(), prefetch_.end(), read);
  if (at != prefetch_.end()) {
    prefetch_.erase(at);
    demand_.push_back(std::move(read));
  }
}

void ReadQueue::Stop(const std::shared_ptr<QueuedRead>& read) {
  read->cancelled = true;
  Line& waiting = line(*read);
  waiting.erase(std::remove(waiting.begin(), waiting.end(), read), waiting.end());
}

std::shared_ptr<QueuedRead> ReadQueue::Cancel(uint64_t tag) {
  auto found = by_tag_.find(tag);
  if (found == by_tag_.end()) {
    return nullptr;
  }
  std::shared_ptr<QueuedRead> read = found->second;
  if (read->handed < read->job.length) {
    Stop(read);
    if (read->outcome == ReadOutcome::kOk) {
      read->outcome = ReadOutcome::kCancelled;
    }
  }
  return RetireIfOver(read);
}

uint32_t ReadQueue::Abandon(uint64_t tag) {
  auto found = by_tag_.find(tag);
  if (found == by_tag_.end()) {
    return 0;
  }
  QueuedRead& read = *found->second;
  in_flight_ -= read.demand_in_flight + read.prefetch_in_flight;
  prefetch_in_flight_ -= read.prefetch_in_flight;
  read.demand_in_flight = read.prefetch_in_flight = 0;
  read.abandoned_bytes = read.handed;
  return read.running;
}

uint64_t ReadQueue::NextLength(const QueuedRead& read) const {
  return std::min(limits_.chunk_bytes, read.job.length - read.handed);
}

ReadChunk ReadQueue::Take(Line& line, RequestClass as) {
  const std::shared_ptr<QueuedRead> read = line.front();
  ReadChunk chunk{read, read->handed, NextLength(*read), as};
  read->handed += chunk.length;
  ++read->running;
  if (read->handed == read->job.length) {
    line.pop_front();
  }
  return chunk;
}

std::optional<ReadChunk> ReadQueue::TakeFrom(Line& line, RequestClass as) {
  if (line.empty()) {
    return std::nullopt;
  }
  const uint64_t length = NextLength(*line.front());
  const uint64_t most_ahead = limits_.prefetch_bytes * (line.front()->job.sole ? 2 : 1);
  const bool fits = in_flight_ + length <= limits_.in_flight_bytes &&
                    (as == RequestClass::kDemand || (prefetch_in_flight_ == in_flight_ &&  // no demand runs
                                                     prefetch_in_flight_ + length <= most_ahead));
  // One chunk may always run: in_flight_ == 0 also means that no prefetch is in flight.
  if (!fits && in_flight_ != 0) {
    return std::nullopt;
  }
  ReadChunk chunk = Take(line, as);
  in_flight_ += length;
  if (as == RequestClass::kPrefetch) {
    prefetch_in_flight_ += length;
    chunk.read->prefetch_in_flight += length;
  } else {
    chunk.read->demand_in_flight += length;
  }
  return chunk;
}

std::optional<ReadChunk> ReadQueue::NextUrgent() {
  return urgent_.empty() ? std::nullopt : std::optional(Take(urgent_, RequestClass::kDemand));
}

std::optional<ReadChunk> ReadQueue::Next() {
  if (!urgent_.empty()) {
    return NextUrgent();
  }
  if (!demand_.empty()) {
    return TakeFrom(demand_, RequestClass::kDemand);
  }
  return TakeFrom(prefetch_, RequestClass::kPrefetch);
}

int64_t ReadQueue::ProgressNanos(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  if (found == by_tag_.end()) {
    return 0;
  }
  const QueuedRead& read = *found->second;
  return read.running == 0 ? landed_nanos_ : std::max(read.started_nanos, read.landed_nanos);
}

void ReadQueue::Landed(const ReadChunk& chunk, int64_t now) {
  QueuedRead& read = *chunk.read;
  read.landed_nanos = landed_nanos_ = now;
  if (read.job.urgent || chunk.offset < read.abandoned_bytes) {
    return;
  }
  in_flight_ -= chunk.length;
  if (chunk.started_as == RequestClass::kPrefetch) {
    prefetch_in_flight_ -= chunk.length;
    read.prefetch_in_flight -= chunk.length;
  } else {
    read.demand_in_flight -= chunk.length;
  }
}

std::shared_ptr<QueuedRead> ReadQueue::Finish(const ReadChunk& chunk, ReadOutcome outcome,
                                              absl::Status status, uint64_t bytes_read,
                                              uint64_t cached_bytes) {
  const std::shared_ptr<QueuedRead>& read = chunk.read;
  --read->running;
  read->bytes_read += bytes_read;
  read->cached_bytes += cached_bytes;
  if (outcome != ReadOutcome::kOk &&
      (read->outcome == ReadOutcome::kOk || read->outcome == ReadOutcome::kCancelled)) {
    read->outcome = outcome;
    read->status = std::move(status);
    if (read->handed < read->job.length && !read->cancelled) {
      Stop(read);
    }
  }
  return RetireIfOver(read);
}

std::shared_ptr<QueuedRead> ReadQueue::RetireIfOver(const std::shared_ptr<QueuedRead>& read) {
  if (read->running != 0 || (read->handed < read->job.length && !read->cancelled)) {
    return nullptr;
  }
  std::shared_ptr<QueuedRead> over = read;
  by_tag_.erase(over->job.tag);
  return over;
}

ReadResult ResultOf(const QueuedRead& read, int64_t ended_nanos) {
  ReadResult result;
  result.tag = read.job.tag;
  result.outcome = read.outcome;
  result.status = read.status;
  result.bytes_read = read.bytes_read;
  result.cached_bytes = read.cached_bytes;
  result.started_nanos = read.started_nanos;
  result.ended_nanos = ended_nanos;
  return result;
}

}  // namespace sluice::weightd
