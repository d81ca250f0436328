#include "weightd/store/pread_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace sluice::weightd {

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
  return RegisterFile(path, std::move(file));
}

absl::StatusOr<int> PreadReader::RegisterFile(const std::string& path, std::unique_ptr<ReadFile> file) {
  MutexLock lock(&mutex_);
  files_.push_back({path, std::move(file)});
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

void PreadReader::Abandon(uint64_t tag) {
  MutexLock lock(&mutex_);
  const size_t most = static_cast<size_t>(std::max(1, options_.threads)) + kSpareThreads;
  for (uint32_t stuck = queue_.Abandon(tag); stuck > 0 && threads_.size() < most && !stop_; --stuck) {
    threads_.emplace_back([this] { Run(); });
  }
  WakeOne();
}

int64_t PreadReader::ProgressNanos(uint64_t tag) const {
  MutexLock lock(&mutex_);
  return queue_.ProgressNanos(tag);
}

std::string PreadReader::Describe() const {
  MutexLock lock(&mutex_);
  return DescribeReads("pread", files_);
}

// Every thread that starts on a chunk wakes the next one while there is more: no herd, and no read waits for
// long. Landed chunks need one thread, unless one is checking already.
void PreadReader::WakeOne() {
  const bool may_read = queue_.waits() && (queue_.urgent() || !queue_.full());
  if (idle_ > 0 && (may_read || (!landed_.empty() && checking_ == 0))) {
    work_.Signal();
  }
}

void PreadReader::Run() {
  std::optional<ReadChunk> chunk;
  ReadFile* file = nullptr;
  std::optional<LandedChunk> landed;
  while (Take(&chunk, &file, &landed)) {
    if (chunk.has_value()) {
      landed = Read(*chunk, file);
    }
    if (landed.has_value()) {
      Check(*landed);
    }
  }
}

// A landed chunk is checked before more is read only if no thread is checking.
std::optional<ReadChunk> PreadReader::NextRead() {
  return landed_.empty() || checking_ > 0 ? queue_.Next() : std::nullopt;
}

bool PreadReader::Take(std::optional<ReadChunk>* chunk, ReadFile** file, std::optional<LandedChunk>* landed) {
  chunk->reset();
  landed->reset();
  MutexLock lock(&mutex_);
  while (!stop_ && !(*chunk = NextRead()).has_value() && landed_.empty()) {
    ++idle_;
    work_.Wait(&mutex_);
    --idle_;
  }
  if (stop_) {
    return false;
  }
  if (chunk->has_value()) {
    QueuedRead& read = *(*chunk)->read;
    read.started_nanos = read.started_nanos == 0 ? options_.clock->NowNanos() : read.started_nanos;
    *file = files_[static_cast<size_t>(read.job.file)].file.get();
  } else {
    *landed = std::move(landed_.front());
    landed_.pop_front();
    ++checking_;
  }
  WakeOne();
  return true;
}

std::optional<LandedChunk> PreadReader::Read(const ReadChunk& chunk, ReadFile* file) {
  const ReadJob& job = chunk.read->job;
  LandedChunk landed{chunk, {}, ""};
  if (job.prepare) {
    job.prepare(job.dest + chunk.offset, chunk.length);
  }
  landed.range =
      ReadRange(*file, job.dest + chunk.offset, chunk.length, job.offset + chunk.offset, job.past_cache);
  MutexLock lock(&mutex_);
  queue_.Landed(chunk, options_.clock->NowNanos());
  if (landed.range.outcome != ReadOutcome::kOk) {
    landed.path = files_[static_cast<size_t>(job.file)].path;
  }
  const bool left_to_others = queue_.waits() && (checking_ > 0 || idle_ > 0);
  if (left_to_others) {
    landed_.push_back(std::move(landed));
    WakeOne();
    return std::nullopt;
  }
  ++checking_;
  WakeOne();
  return landed;
}

void PreadReader::Check(const LandedChunk& landed) {
  ReadOutcome outcome;
  absl::Status status = CheckLanded(landed, &outcome);
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    --checking_;
    over = queue_.Finish(landed.chunk, outcome, std::move(status), landed.range.bytes_read,
                         landed.range.cached_bytes);
  }
  if (over != nullptr) {
    sink_(ResultOf(*over, options_.clock->NowNanos()));
  }
}

}  // namespace sluice::weightd
