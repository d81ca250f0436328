// The `pread` engine: a few threads, each reading or checking one chunk at a time.
//
// A thread that has read a chunk goes on reading, and leaves the check to a thread that has nothing to read:
// under load one thread checks the chunks of all others, and nobody is woken for a read.
//
// Thread safety: thread-safe, see block_reader.h.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/read_file.h"
#include "weightd/store/read_queue.h"

namespace sluice::weightd {

class PreadReader final : public BlockReader {
 public:
  struct Options {
    int threads = 64;
    ReadLimits limits;
    FileOpener opener;             // opens files; REQUIRED
    const Clock* clock = nullptr;  // borrowed; REQUIRED
  };

  // Maximum number of threads that replace stuck ones.
  static constexpr uint32_t kSpareThreads = 64;

  explicit PreadReader(Options options);
  // Reports nothing further: drops queued jobs and waits for running reads.
  ~PreadReader() override;

  absl::StatusOr<int> Register(const std::string& path) override;
  absl::StatusOr<int> RegisterFile(const std::string& path, std::unique_ptr<ReadFile> file) override;
  void SetSink(std::function<void(ReadResult)> sink) override;
  void Submit(ReadJob job) override;
  void Promote(uint64_t tag) override;
  void Cancel(uint64_t tag) override;
  void Abandon(uint64_t tag) override;
  int64_t ProgressNanos(uint64_t tag) const override;
  std::string Describe() const override;

 private:
  void Run();
  std::optional<ReadChunk> NextRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a chunk to read or to check; false: the reader stops.
  bool Take(std::optional<ReadChunk>* chunk, ReadFile** file, std::optional<LandedChunk>* landed);
  // Reads a chunk. Returns it if the caller must check it, nothing if another thread may.
  std::optional<LandedChunk> Read(const ReadChunk& chunk, ReadFile* file);
  void Check(const LandedChunk& landed);
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::function<void(ReadResult)> sink_;  // set before the first Submit
  mutable Mutex mutex_;
  CondVar work_;
  ReadQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<OpenFile> files_ ABSL_GUARDED_BY(mutex_);
  std::deque<LandedChunk> landed_ ABSL_GUARDED_BY(mutex_);
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;      // threads that wait for work
  int checking_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that check a chunk
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::weightd
