// The `uring` engine: one thread, one ring, many reads in flight. A second thread helps to check what landed
// at once: whoever waits for it has CPUs to spare.
//
// While a demand is read the thread looks now and then whether bytes have come of which the kernel has not
// reported yet (arrival_marks.h). What passes its check is taken for read; its memory is not read into again
// before the report, since it is the kernel's until then. Bytes that do not pass wait for the report.
//
// Thread safety: thread-safe, see block_reader.h.
#ifndef SLUICE_WEIGHTD_URING_READER_H_
#define SLUICE_WEIGHTD_URING_READER_H_

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "weightd/io/arrival_marks.h"
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
  // Reads in flight at most. Of 64 KiB, the smallest extents worth a read, they are the 8 MiB that the limits
  // allow: a virtual disk may report nothing before all it was given is done, and pauses then.
  static constexpr uint32_t kDepth = 128 + kUrgentSlots;
  // Bytes that have come and are not reported, at most, before no further read starts and the disk's queue
  // runs empty: others who read from it wait for their reports too.
  static constexpr uint64_t kUnreportedBytes = 32 * 1024 * 1024;

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
    bool marked = false;     // marks lie in its memory, and it has not been checked
    bool landed = false;     // it no longer counts against the limits
    int64_t seen_nanos = 0;  // when its bytes were found to be there ahead of the report; 0: they were not
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
  std::optional<ReadChunk> NextChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the chunk's memory is still the kernel's.
  bool OverlapsUnreported(const ReadChunk& chunk) const;
  void StartRead(uint32_t slot);
  // How long to wait for the kernel before the next look.
  int64_t Patience();
  // Takes what has come ahead of its report.
  void LookForArrivals();
  // Checks what has come to the slot's memory, and takes it for read if it is right.
  void TakeEarly(uint32_t slot);
  void Take(const RingCompletion& completion);
  void Free(uint32_t slot);
  // Starts anew what the kernel refused with EAGAIN.
  void TryAgain();
  // The slot's read is over: frees the slot and lines the chunk up for its check.
  void Land(uint32_t slot);
  // Has what landed checked, with the helper's help if it is much. New reads run meanwhile.
  void FinishLanded();
  // The helper's thread.
  void Help();
  // Checks chunks of unchecked_ until there are none, and reports jobs that are over.
  void CheckUnchecked();
  std::optional<LandedChunk> NextUnchecked();
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
  const ArrivalMarks marks_;
  // The thread's, all to the next mutex.
  LookTimes looks_;
  std::optional<ReadChunk> held_;  // its memory is still the kernel's
  uint64_t unreported_bytes_ = 0;  // of chunks that came ahead of their reports
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<LandedChunk> landed_;
  std::vector<uint32_t> again_;  // slots that the kernel refused for now
  Mutex check_mutex_;
  CondVar check_wake_;
  std::deque<LandedChunk> unchecked_ ABSL_GUARDED_BY(check_mutex_);
  bool check_stop_ ABSL_GUARDED_BY(check_mutex_) = false;
  bool help_wanted_ ABSL_GUARDED_BY(check_mutex_) = false;
  std::thread helper_;  // const after construction, as the next
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_URING_READER_H_
