#include "weightd/pread_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {

PreadReader::PreadReader(Options options) : options_(std::move(options)), queue_(options_.limits) {
  for (int i = 0; i < std::max(1, options_.threads); ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

PreadReader::~PreadReader() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) {
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
  work_.SignalAll();
}

void PreadReader::Promote(uint64_t tag) {
  MutexLock lock(&mutex_);
  queue_.Promote(tag);
  work_.SignalAll();
}

void PreadReader::Cancel(uint64_t tag) {
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Cancel(tag);
    work_.SignalAll();
  }
  if (over != nullptr) {
    Report(*over);
  }
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

void PreadReader::Run() {
  while (true) {
    std::optional<ReadChunk> chunk;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && !(chunk = queue_.Next()).has_value()) {
        work_.Wait(&mutex_);
      }
      if (stop_) {
        return;
      }
      if (chunk->read->started_nanos == 0) {
        chunk->read->started_nanos = options_.clock->NowNanos();
      }
    }
    ReadChunkNow(*chunk);
  }
}

void PreadReader::ReadChunkNow(const ReadChunk& chunk) {
  const ReadJob& job = chunk.read->job;
  File* file;
  {
    MutexLock lock(&mutex_);
    file = files_[static_cast<size_t>(job.file)].get();
  }
  std::byte* dest = job.dest + chunk.offset;
  const uint64_t at = job.offset + chunk.offset;
  RangeRead range = ReadRange(*file->file, dest, chunk.length, at);
  absl::Status status = StatusOfRange(range, file->path, chunk.length, at);
  if (status.ok() && job.check) {
    status = job.check(chunk.offset, std::span<const std::byte>(dest, chunk.length));
    range.outcome = status.ok() ? range.outcome : ReadOutcome::kCorrupt;
  }
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Finish(chunk, range.outcome, std::move(status), range.bytes_read);
    work_.SignalAll();
  }
  if (over != nullptr) {
    Report(*over);
  }
}

void PreadReader::Report(const QueuedRead& read) {
  ReadResult result;
  result.tag = read.job.tag;
  result.outcome = read.outcome;
  result.status = read.status;
  result.bytes_read = read.bytes_read;
  result.started_nanos = read.started_nanos;
  result.ended_nanos = options_.clock->NowNanos();
  sink_(std::move(result));
}

}  // namespace sluice
