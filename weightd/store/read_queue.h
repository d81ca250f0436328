// Parts that both I/O engines share: the order in which reads start, a landed chunk's check, the open files.
//
// The order is pure bookkeeping of jobs, chunks and bytes in flight.
//
// Rules: demand before prefetch; a prefetch chunk starts only while no demand chunk waits or runs, since it
// would take disk bandwidth from it; at most `prefetch_bytes` of prefetch, or twice as much of a sole
// session's, are in flight; all together stay within `in_flight_bytes`; one chunk may always run, however
// small the bounds. Within a class jobs are served in order, and so are a job's chunks. Urgent jobs and
// abandoned reads count against no limit.
//
// Thread safety: thread-compatible; an engine guards it with its own mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/read_file.h"

namespace sluice::weightd {

// Maximum size of a read: the kernel splits larger ones and may then fail them with EAGAIN (liburing#766).
inline constexpr uint64_t kMaxReadBytes = 1024 * 1024;

struct ReadLimits {
  // Bytes per read. A multiple of the checksum chunk (256 KiB), so that a read can be checked alone. Large
  // reads are faster, and splitting them does not help even a single job. Cut to kMaxReadBytes.
  uint64_t chunk_bytes = kMaxReadBytes;
  uint64_t in_flight_bytes = 8 * 1024 * 1024;
  uint64_t prefetch_bytes = 2 * 1024 * 1024;
};

// A job in the queue and its progress.
struct QueuedRead {
  ReadJob job;
  uint64_t handed = 0;   // leading bytes handed out so far
  uint32_t running = 0;  // chunks handed out and not finished
  // Bytes of chunks handed out and not landed, as they count against the limits.
  uint64_t demand_in_flight = 0;
  uint64_t prefetch_in_flight = 0;
  uint64_t abandoned_bytes = 0;  // leading bytes in abandoned chunks
  uint64_t bytes_read = 0;
  uint64_t cached_bytes = 0;
  int64_t started_nanos = 0;
  int64_t landed_nanos = 0;  // when its latest chunk landed
  bool cancelled = false;
  ReadOutcome outcome = ReadOutcome::kOk;
  absl::Status status;
};

// The report of a read that is over. `ended_nanos`: now, on the engine's clock.
ReadResult ResultOf(const QueuedRead& read, int64_t ended_nanos);

struct ReadChunk {
  std::shared_ptr<QueuedRead> read;
  uint64_t offset = 0;  // within the job
  uint64_t length = 0;
  RequestClass started_as = RequestClass::kDemand;
};

// A chunk whose read is over and whose bytes have not been checked.
struct LandedChunk {
  ReadChunk chunk;
  RangeRead range;
  std::string path;  // set on failure
};

// Checks a landed chunk by its job's check, and sets `outcome` to its read's or the check's. The error names
// file and offset.
absl::Status CheckLanded(const LandedChunk& landed, ReadOutcome* outcome);

struct OpenFile {
  std::string path;
  std::unique_ptr<ReadFile> file;
};
// "ENGINE, O_DIRECT", or why a file is read another way; "ENGINE" without files.
std::string DescribeReads(const char* engine, absl::Span<const OpenFile> files);

class ReadQueue {
 public:
  explicit ReadQueue(const ReadLimits& limits);

  void Add(ReadJob job);
  void Promote(uint64_t tag);
  // Returns the job if none of its chunks runs: it is over and must be reported.
  std::shared_ptr<QueuedRead> Cancel(uint64_t tag);

  // Abandons the job's running chunks: they count against no limit. Returns their number.
  uint32_t Abandon(uint64_t tag);

  // The next chunk of an urgent job.
  std::optional<ReadChunk> NextUrgent();
  // The next chunk to start, urgent ones first; none if nothing waits or the limits forbid it.
  std::optional<ReadChunk> Next();

  // Notes that a chunk's read has ended at `now` and another may start; the chunk still belongs to its job.
  void Landed(const ReadChunk& chunk, int64_t now);

  // BlockReader::ProgressNanos().
  int64_t ProgressNanos(uint64_t tag) const;

  // Ends a landed chunk, verified or not; the first failure of a job is kept and stops its further chunks.
  // Returns the job if this was its last chunk: it must be reported.
  std::shared_ptr<QueuedRead> Finish(const ReadChunk& chunk, ReadOutcome outcome, absl::Status status,
                                     uint64_t bytes_read, uint64_t cached_bytes);

  uint64_t in_flight_bytes() const { return in_flight_; }
  bool idle() const { return by_tag_.empty(); }
  // True if a chunk waits that the limits may allow to start.
  bool waits() const { return !urgent_.empty() || !demand_.empty() || !prefetch_.empty(); }
  bool urgent() const { return !urgent_.empty(); }
  // True if nothing can start before a read lands.
  bool full() const { return in_flight_ + limits_.chunk_bytes > limits_.in_flight_bytes && in_flight_ != 0; }

 private:
  using Line = std::deque<std::shared_ptr<QueuedRead>>;
  Line& line(const QueuedRead& read) {
    return read.job.urgent ? urgent_ : read.job.request_class == RequestClass::kDemand ? demand_ : prefetch_;
  }
  // Length of the job's next chunk.
  uint64_t NextLength(const QueuedRead& read) const;
  // Hands out a chunk of the first job. REQUIRES: there is one.
  ReadChunk Take(Line& line, RequestClass as);
  // Starts no more of the job; its outcome is kept.
  void Stop(const std::shared_ptr<QueuedRead>& read);
  std::optional<ReadChunk> TakeFrom(Line& line, RequestClass as);
  std::shared_ptr<QueuedRead> RetireIfOver(const std::shared_ptr<QueuedRead>& read);

  const ReadLimits limits_;
  Line urgent_;
  Line demand_;
  Line prefetch_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<QueuedRead>> by_tag_;
  uint64_t in_flight_ = 0;
  uint64_t prefetch_in_flight_ = 0;
  int64_t landed_nanos_ = 0;  // when the latest chunk of any job landed
};

}  // namespace sluice::weightd
