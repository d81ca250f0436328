#include "weightd/pread_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {

PreadReader::PreadReader(Options options) : options_(std::move(options)), queue_(options_.limits) {
  const MutexLock lock(&mutex_);
  for (int i = 0; i < std::max(1, options_.threads); ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

PreadReader::~PreadReader() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    threads.swap(threads_);
    work_.SignalAll();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

absl::StatusOr<int> PreadReader::Register(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<ReadFile> file, options_.opener(path));
  MutexLock lock(&mutex_);
  files_.push_back(std::make_unique<File>(File{path, std::move(file)}));
  return static_cast<int>(files_.size()) - 1;
}

void PreadReader::SetSink(std::function<void(ReadResult)> sink) { sink_ = std::move(sink); }

void PreadReader::Submit(ReadJob job) {
  MutexLock lock(&mutex_);
  queue_.Add(std::move(job));
  WakeOne();
}

void PreadReader::Promote(uint64_t tag) {
  MutexLock lock(&mutex_);
  queue_.Promote(tag);
  WakeOne();
}

void PreadReader::Cancel(uint64_t tag) {
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Cancel(tag);
    WakeOne();
  }
  if (over != nullptr) {
    sink_(ResultOf(*over, options_.clock->NowNanos()));
  }
}

void PreadReader::WriteOff(uint64_t tag) {
  MutexLock lock(&mutex_);
  const size_t most = static_cast<size_t>(std::max(1, options_.threads)) + kSpareThreads;
  for (uint32_t stuck = queue_.WriteOff(tag); stuck > 0 && threads_.size() < most && !stop_; --stuck) {
    threads_.emplace_back([this] { Run(); });
  }
  WakeOne();
}

std::string PreadReader::Describe() const {
  MutexLock lock(&mutex_);
  std::string how;
  for (const auto& file : files_) {
    if (how.empty() || file->file->how() != "O_DIRECT") {
      how = file->file->how();
    }
  }
  return how.empty() ? "pread" : absl::StrCat("pread, ", how);
}

// Every thread that takes a chunk wakes the next while there is more: no herd, and no read waits for long.
void PreadReader::WakeOne() {
  if (idle_ > 0 && queue_.waits() && (queue_.urgent() || !queue_.full())) {
    work_.Signal();
  }
}

void PreadReader::Run() {
  while (true) {
    std::optional<ReadChunk> chunk;
    ReadFile* file = nullptr;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && !(chunk = queue_.Next()).has_value()) {
        ++idle_;
        work_.Wait(&mutex_);
        --idle_;
      }
      if (stop_) {
        return;
      }
      if (chunk->read->started_nanos == 0) {
        chunk->read->started_nanos = options_.clock->NowNanos();
      }
      file = files_[static_cast<size_t>(chunk->read->job.file)]->file.get();
      WakeOne();
    }
    ReadChunkNow(*chunk, file);
  }
}

void PreadReader::ReadChunkNow(const ReadChunk& chunk, ReadFile* file) {
  const ReadJob& job = chunk.read->job;
  std::byte* dest = job.dest + chunk.offset;
  RangeRead range = ReadRange(*file, dest, chunk.length, job.offset + chunk.offset);
  std::string path;
  {
    MutexLock lock(&mutex_);
    queue_.Landed(chunk);
    WakeOne();
    if (range.outcome != ReadOutcome::kOk) {
      path = files_[static_cast<size_t>(job.file)]->path;
    }
  }
  absl::Status status = StatusOfRange(range, path, chunk.length, job.offset + chunk.offset);
  if (status.ok() && job.check) {
    status = job.check(chunk.offset, std::span<const std::byte>(dest, chunk.length));
    range.outcome = status.ok() ? range.outcome : ReadOutcome::kCorrupt;
  }
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Finish(chunk, range.outcome, std::move(status), range.bytes_read);
  }
  if (over != nullptr) {
    sink_(ResultOf(*over, options_.clock->NowNanos()));
  }
}

}  // namespace sluice
