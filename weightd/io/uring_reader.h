// The `uring` engine: one thread, one ring, many reads in flight. What the completion queue reports is over,
// nothing else is; the thread starts the next reads first and then checks what landed.
//
// Thread safety: thread-safe, see block_reader.h.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "weightd/io/block_reader.h"
#include "weightd/io/read_file.h"
#include "weightd/io/read_queue.h"
#include "weightd/io/read_ring.h"

namespace sluice {

class UringReader final : public BlockReader {
 public:
  struct Options {
    ReadLimits limits;
    FileOpener opener;               // how files are opened; REQUIRED
    std::unique_ptr<ReadRing> ring;  // made for `depth` reads; REQUIRED
    uint32_t depth = kDepth;
    const Clock* clock = nullptr;  // borrowed; REQUIRED
  };
  // Of the reads in flight, for urgent jobs alone.
  static constexpr uint32_t kUrgentSlots = 8;
  // Reads in flight at most: of 64 KiB, the smallest extents worth a read, they are the 8 MiB that the limits
  // allow.
  static constexpr uint32_t kDepth = 128 + kUrgentSlots;

  explicit UringReader(Options options);
  // Reports nothing further: jobs that are still queued are forgotten, running reads are waited for.
  ~UringReader() override;

  absl::StatusOr<int> Register(const std::string& path) override;
  void SetSink(std::function<void(ReadResult)> sink) override;
  void Submit(ReadJob job) override;
  void Promote(uint64_t tag) override;
  void Cancel(uint64_t tag) override;
  void WriteOff(uint64_t tag) override;
  std::string Describe() const override;

 private:
  struct File {
    std::string path;
    std::unique_ptr<ReadFile> file;
  };
  struct Slot {
    std::optional<ReadChunk> chunk;  // none: free
    std::optional<RangeProgress> progress;
  };

  // A chunk whose read is over and whose bytes have not been checked.
  struct LandedChunk {
    ReadChunk chunk;
    RangeRead range;
    std::string path;  // with a failure
  };

  void Run();
  // Starts what the limits allow; false once the reader stops and nothing runs.
  bool StartReads();
  // Gives the next chunk a slot; none: nothing may start.
  std::optional<uint32_t> TakeNext();
  void StartRead(uint32_t slot);
  void Take(const RingCompletion& completion);
  // Starts anew what the kernel refused with EAGAIN.
  void TryAgain();
  // The slot's read is over: frees the slot and lines the chunk up for its check.
  void Land(uint32_t slot);
  // Checks what landed and reports jobs that are over. New reads run meanwhile.
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
  std::vector<std::unique_ptr<File>> files_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread sleeps, or is about to after one more look at the queue, and work that comes now may start.
  std::atomic<bool> wants_wake_{false};
  // The thread's, all to the thread itself.
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<LandedChunk> landed_;
  std::vector<uint32_t> again_;  // slots that the kernel refused for now
  std::thread thread_;           // const after construction
};

}  // namespace sluice
