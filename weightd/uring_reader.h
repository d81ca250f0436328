// The `uring` engine: one thread, one ring, many reads in flight. A second thread helps to check what landed
// at once: whoever waits for it has CPUs to spare.
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
#include "weightd/block_reader.h"
#include "weightd/read_file.h"
#include "weightd/read_queue.h"
#include "weightd/read_ring.h"

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
  std::optional<ReadChunk> NextChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartRead(uint32_t slot);
  void Take(const RingCompletion& completion);
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
  std::vector<Slot> slots_;           // the thread's
  std::vector<uint32_t> free_slots_;  // the thread's
  std::vector<LandedChunk> landed_;   // the thread's
  std::vector<uint32_t> again_;       // the thread's: slots that the kernel refused for now
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
