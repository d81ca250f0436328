// Interface of the I/O engines (uring_reader.h, pread_reader.h), which read extents from files, and their
// reports.
//
// An engine splits a job into reads of at most 1 MiB, starts demand before prefetch, keeps the bytes in
// flight bounded, continues short reads from an aligned offset, and has every chunk checked before it reports
// success.
//
// Thread safety: thread-safe. SetSink is called once, before the first Submit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/session_abi.h"

namespace sluice::weightd {

// Prepares memory that is about to be written; called on a reader's thread.
using PrepareMemory = std::function<void(std::byte* dest, uint64_t bytes)>;

// Verifies bytes that arrived at `offset` of the job; called on a reader's thread, for whole checksum chunks.
using ChunkCheck = std::function<absl::Status(uint64_t offset, std::span<const std::byte> bytes)>;

struct ReadJob {
  uint64_t tag = 0;           // the caller's, unique among unreported jobs
  int file = 0;               // from Register
  uint64_t offset = 0;        // a multiple of 4096
  std::byte* dest = nullptr;  // page-aligned; `length` bytes that belong to the job until it is reported
  uint64_t length = 0;        // a multiple of 4096, not 0
  RequestClass request_class = RequestClass::kDemand;
  PrepareMemory prepare;    // called for a chunk's place before its read; may be empty
  ChunkCheck check;         // may be empty
  bool sole = false;        // from the only session: no demand of another can wait for it
  bool urgent = false;      // a hedged read of a stuck one: starts at once, outside all limits
  bool past_cache = false;  // from the disk alone: the page cache may hold the bytes that a check refused
};

class ReadFile;

enum class ReadOutcome : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kCorrupt = 2,  // the check refused the bytes
  kEndOfFile = 3,
  kIoError = 4  // the system call failed, after retries
};

struct ReadResult {
  uint64_t tag = 0;
  ReadOutcome outcome = ReadOutcome::kOk;
  absl::Status status;        // OK with kOk and kCancelled; else names file and offset
  uint64_t bytes_read = 0;    // from the file, also for a failed job
  uint64_t cached_bytes = 0;  // those of bytes_read that came from the page cache
  int64_t started_nanos = 0;  // when the first read started, 0 if none did
  int64_t ended_nanos = 0;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;

  // Opens a file for reading. Errors of open(2), naming the path.
  virtual absl::StatusOr<int> Register(const std::string& path) = 0;

  // Adds an open file, which may have no descriptor; `path` names it in messages. Unimplemented: this engine
  // reads by descriptors.
  virtual absl::StatusOr<int> RegisterFile(const std::string& path, std::unique_ptr<ReadFile> file);

  // Sets the receiver of reports: exactly one per job, on a reader's thread, without the reader's locks.
  virtual void SetSink(std::function<void(ReadResult)> sink) = 0;

  virtual void Submit(ReadJob job) = 0;

  // Makes a prefetch a demand; nothing if the job is unknown or already one.
  virtual void Promote(uint64_t tag) = 0;

  // Starts no further read of the job. It is still reported: kCancelled, or its outcome if all was started.
  virtual void Cancel(uint64_t tag) = 0;

  // Marks the job's running reads as stuck: they count against no limit, so others may start in their stead.
  virtual void Abandon(uint64_t) {}

  // When the job's first read started or bytes of it last arrived, on the engine's clock; while none of its
  // reads runs, as it waits for others, when bytes of any job did. 0: never, or the job is unknown.
  virtual int64_t ProgressNanos(uint64_t) const { return 0; }

  // E.g. "uring, O_DIRECT", "pread, buffered (...)": for logs, metrics and doctor.
  virtual std::string Describe() const = 0;
};

}  // namespace sluice::weightd
