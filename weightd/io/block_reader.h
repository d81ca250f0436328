// Reading extents from files: the interface of the I/O engines (uring_reader.h, pread_reader.h), and what
// they report.
//
// An engine splits a job into reads of at most 1 MiB, starts demand before prefetch, keeps the bytes in
// flight bounded, re-reads what came short from an aligned offset, and has every chunk checked before it
// reports success.
//
// Thread safety: thread-safe. SetSink is called once, before the first Submit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ring/session_abi.h"

namespace sluice {

// Verifies bytes that arrived at `offset` of the job; called on a reader's thread, for whole checksum chunks.
using ChunkCheck = std::function<absl::Status(uint64_t offset, std::span<const std::byte> bytes)>;

struct ReadJob {
  uint64_t tag = 0;           // the caller's, unique among jobs that have not been reported
  int file = 0;               // from Register
  uint64_t offset = 0;        // a multiple of 4096
  std::byte* dest = nullptr;  // page-aligned; `length` bytes that belong to the job until it is reported
  uint64_t length = 0;        // a multiple of 4096, not 0
  RequestClass request_class = RequestClass::kDemand;
  ChunkCheck check;     // may be empty
  bool sole = false;    // of the only session: no other one's demand can wait for it
  bool urgent = false;  // a second try at a read that is stuck: starts at once, beside all limits
};

enum class ReadOutcome : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kCorrupt = 2,  // the check refused the bytes
  kEndOfFile = 3,
  kIoError = 4  // the system call failed, retries counted
};

struct ReadResult {
  uint64_t tag = 0;
  ReadOutcome outcome = ReadOutcome::kOk;
  absl::Status status;        // OK with kOk and kCancelled; else names file and offset
  uint64_t bytes_read = 0;    // from the file, those of a failed job too
  int64_t started_nanos = 0;  // when the first read started, 0 if none did
  int64_t ended_nanos = 0;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;

  // Opens a file for reading. Errors of open(2), naming the path.
  virtual absl::StatusOr<int> Register(const std::string& path) = 0;

  // Where reports go: exactly one per job, on a reader's thread, with no lock of the reader held.
  virtual void SetSink(std::function<void(ReadResult)> sink) = 0;

  virtual void Submit(ReadJob job) = 0;

  // Makes a prefetch a demand; nothing if the job is unknown or already one.
  virtual void Promote(uint64_t tag) = 0;

  // Starts no further read of the job. It is still reported: kCancelled, or as it ended if all was started.
  virtual void Cancel(uint64_t tag) = 0;

  // What runs of the job is stuck and no longer counts against any limit: others may start in its stead.
  virtual void WriteOff(uint64_t) {}

  // "uring, O_DIRECT", "pread, buffered (...)": for logs, metrics and doctor.
  virtual std::string Describe() const = 0;
};

}  // namespace sluice
