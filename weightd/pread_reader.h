// The `pread` engine: a few threads, each reading one chunk at a time.
//
// Thread safety: thread-safe, see block_reader.h.
#ifndef SLUICE_WEIGHTD_PREAD_READER_H_
#define SLUICE_WEIGHTD_PREAD_READER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "weightd/block_reader.h"
#include "weightd/read_file.h"
#include "weightd/read_queue.h"

namespace sluice {

class PreadReader final : public BlockReader {
 public:
  struct Options {
    int threads = 32;
    ReadLimits limits;
    FileOpener opener;             // how files are opened; REQUIRED
    const Clock* clock = nullptr;  // borrowed; REQUIRED
  };

  // Threads that take the places of stuck ones, at most.
  static constexpr uint32_t kSpareThreads = 64;

  explicit PreadReader(Options options);
  // Reports nothing further: jobs that are still queued are forgotten, running reads are waited for.
  ~PreadReader() override;

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

  void Run();
  void ReadChunkNow(const ReadChunk& chunk, ReadFile* file);
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::function<void(ReadResult)> sink_;  // set before the first Submit
  mutable Mutex mutex_;
  CondVar work_;
  ReadQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<File>> files_ ABSL_GUARDED_BY(mutex_);
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that wait for work
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_PREAD_READER_H_
