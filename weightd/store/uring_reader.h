// The `uring` I/O engine and the kernel ring below it.
//
// Thread safety: UringReader is thread-safe; ReadRing as stated below.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/read_file.h"
#include "weightd/store/read_queue.h"

namespace sluice::weightd {

// The interface of a ring for the uring engine, so that tests can put scripted files behind it.
//
// Thread safety: Wake() from any thread, AddFile() from any but one at a time; everything else belongs to the
// engine's thread.
struct RingCompletion {
  uint32_t slot = 0;   // as passed to Read()
  int64_t result = 0;  // bytes, or -errno
};

class ReadRing {
 public:
  virtual ~ReadRing() = default;

  // Registers `file` (borrowed for the ring's life) under the next number, from 0 on.
  virtual absl::Status AddFile(ReadFile* file) = 0;

  // Prepares a read; at most `depth` (MakeReadRing) at a time. Starts with the next Start() or Wait().
  virtual void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) = 0;

  // Starts the prepared reads. An error: the kernel refused, and they stay prepared.
  virtual absl::Status Start() = 0;

  // Calls Start(), then fills `completions` with the ended reads, waiting for at least one or a Wake().
  // Errors as for Start().
  virtual absl::Status Wait(std::vector<RingCompletion>* completions) = 0;

  // Ends a Wait(), the current or the next.
  virtual void Wake() = 0;
};

// Makes a kernel ring for `depth` reads with a registered file table (one ring, one thread that submits and
// reaps). It is tried with a real read first: sandboxes may allow the set-up and refuse the use. UNAVAILABLE
// naming the step, the errno and a remedy where the kernel or a sandbox refuses.
absl::StatusOr<std::unique_ptr<ReadRing>> MakeReadRing(uint32_t depth);

// The errno with which this host refuses such a ring; 0 where it works.
int TryReadRing();

// The `uring` engine: one thread, one ring, many reads in flight. A read is over exactly when the completion
// queue reports it; the thread starts the next reads first and then checks the landed ones.
//
// Thread safety: thread-safe, see block_reader.h.
class UringReader final : public BlockReader {
 public:
  struct Options {
    ReadLimits limits;
    FileOpener opener;               // opens files; REQUIRED
    std::unique_ptr<ReadRing> ring;  // made for `depth` reads; REQUIRED
    uint32_t depth = kDepth;
    const Clock* clock = nullptr;  // borrowed; REQUIRED
  };
  // Reads in flight reserved for urgent jobs.
  static constexpr uint32_t kUrgentSlots = 8;
  // Maximum number of reads in flight: at 64 KiB, the smallest extents worth a read, they make up the 8 MiB
  // that the limits allow.
  static constexpr uint32_t kDepth = 128 + kUrgentSlots;

  explicit UringReader(Options options);
  // Reports nothing further: drops queued jobs and waits for running reads.
  ~UringReader() override;

  absl::StatusOr<int> Register(const std::string& path) override;
  void SetSink(std::function<void(ReadResult)> sink) override;
  void Submit(ReadJob job) override;
  void Promote(uint64_t tag) override;
  void Cancel(uint64_t tag) override;
  void Abandon(uint64_t tag) override;
  int64_t ProgressNanos(uint64_t tag) const override;
  std::string Describe() const override;

 private:
  struct Slot {
    std::optional<ReadChunk> chunk;  // none: free
    std::optional<RangeProgress> progress;
    ReadFile* file = nullptr;
  };

  void Run();
  // Starts the reads that the limits allow. Ends early when enough for a report has landed from the page
  // cache. False once the reader stops and nothing runs.
  bool StartReads();
  // Assigns a slot to the next chunk; none: nothing may start.
  std::optional<uint32_t> TakeNext();
  // Copies what the page cache holds, and starts the read of the rest. False: that was all, it has landed.
  bool StartRead(uint32_t slot);
  void Take(const RingCompletion& completion);
  // Restarts reads that the kernel refused with EAGAIN.
  void TryAgain();
  // Ends the slot's read: frees the slot and queues the chunk for its check.
  void Land(uint32_t slot);
  // Checks landed chunks and reports jobs that are over. New reads run meanwhile.
  void FinishLanded();
  // The job's report if this was its last chunk.
  std::optional<ReadResult> FinishChunk(const LandedChunk& landed);
  void Report(std::vector<ReadResult>* over);
  void WakeForWork();

  const Options options_;
  ReadRing* const ring_;
  std::function<void(ReadResult)> sink_;  // set before the first Submit
  mutable Mutex mutex_;
  ReadQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<OpenFile> files_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  // True if the thread sleeps, or is about to after one more look at the queue, and new work may start.
  std::atomic<bool> wants_wake_{false};
  // Members below belong to the thread.
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<LandedChunk> landed_;
  std::vector<uint32_t> again_;  // slots that the kernel refused for now
  std::thread thread_;           // const after construction
};

}  // namespace sluice::weightd
