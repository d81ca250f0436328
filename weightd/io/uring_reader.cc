#include "weightd/io/uring_reader.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::weightd {
namespace {

// Finished jobs are reported together once this many bytes have been checked: a report wakes a thread, which
// costs as much as checking 64 KiB, and delays the first of them by about 25 us.
constexpr uint64_t kReportBytes = 256 * 1024;

}  // namespace

UringReader::UringReader(Options options)
    : options_(std::move(options)),
      ring_(options_.ring.get()),
      queue_(options_.limits),
      slots_(options_.depth) {
  for (uint32_t slot = 0; slot < options_.depth; ++slot) {
    free_slots_.push_back(options_.depth - 1 - slot);
  }
  thread_ = std::thread([this] { Run(); });
}

UringReader::~UringReader() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  ring_->Wake();
  thread_.join();
}

absl::StatusOr<int> UringReader::Register(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<ReadFile> file, options_.opener(path));
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(ring_->AddFile(file.get()));
  files_.push_back(std::make_unique<File>(File{path, std::move(file)}));
  return static_cast<int>(files_.size()) - 1;
}

void UringReader::SetSink(std::function<void(ReadResult)> sink) { sink_ = std::move(sink); }

void UringReader::Submit(ReadJob job) {
  bool may_start;
  {
    MutexLock lock(&mutex_);
    may_start = job.urgent || !queue_.full();
    queue_.Add(std::move(job));
  }
  if (may_start) {  // otherwise the next landing read wakes the thread
    WakeForWork();
  }
}

void UringReader::Promote(uint64_t tag) {
  {
    MutexLock lock(&mutex_);
    queue_.Promote(tag);
  }
  WakeForWork();
}

void UringReader::WakeForWork() {
  if (wants_wake_.exchange(false)) {
    ring_->Wake();
  }
}

void UringReader::Cancel(uint64_t tag) {
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Cancel(tag);
  }
  if (over != nullptr) {
    sink_(ResultOf(*over, options_.clock->NowNanos()));
  }
}

void UringReader::Abandon(uint64_t tag) {
  {
    MutexLock lock(&mutex_);
    queue_.Abandon(tag);
  }
  ring_->Wake();  // others may start now
}

std::string UringReader::Describe() const {
  MutexLock lock(&mutex_);
  std::string how;
  for (const auto& file : files_) {
    if (how.empty() || file->file->how() != "O_DIRECT") {
      how = file->file->how();
    }
  }
  return how.empty() ? "uring" : absl::StrCat("uring, ", how);
}

void UringReader::Run() {
  std::vector<RingCompletion> completions;
  wants_wake_.store(true);
  while (StartReads()) {
    // Obstacles to a submission (memory, limits) pass; the pause keeps a kernel that refuses for good from
    // using up a CPU.
    if (!ring_->Wait(&completions).ok()) {
      BackOff(kMaxReadRetries);
    }
    wants_wake_.store(false);
    for (const RingCompletion& completion : completions) {
      Take(completion);
    }
    TryAgain();
    if (!landed_.empty()) {
      StartReads();
      static_cast<void>(ring_->Start());  // the next Wait() meets the same refusal
      FinishLanded();
    }
    wants_wake_.store(true);
  }
}

std::optional<uint32_t> UringReader::TakeNext() {
  MutexLock lock(&mutex_);
  if (stop_ || free_slots_.empty()) {
    return std::nullopt;
  }
  const bool urgent_only = options_.depth > kUrgentSlots && free_slots_.size() <= kUrgentSlots;
  std::optional<ReadChunk> chunk = urgent_only ? queue_.NextUrgent() : queue_.Next();
  if (!chunk.has_value()) {
    return std::nullopt;
  }
  if (chunk->read->started_nanos == 0) {
    chunk->read->started_nanos = options_.clock->NowNanos();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].progress.emplace(chunk->length);
  slots_[slot].chunk = std::move(chunk);
  return slot;
}

bool UringReader::StartReads() {
  bool idle = free_slots_.size() == slots_.size();
  while (const std::optional<uint32_t> slot = TakeNext()) {
    StartRead(*slot);
    if (idle) {  // the disk gets work while the rest is prepared
      static_cast<void>(ring_->Start());
      idle = false;
    }
  }
  MutexLock lock(&mutex_);
  return !stop_ || free_slots_.size() < slots_.size();
}

void UringReader::StartRead(uint32_t slot) {
  const ReadChunk& chunk = *slots_[slot].chunk;
  const ReadJob& job = chunk.read->job;
  const uint64_t at = chunk.offset + slots_[slot].progress->range().good;
  ring_->Read(slot, job.file, job.dest + at, static_cast<uint32_t>(slots_[slot].progress->left()),
              job.offset + at);
}

void UringReader::Take(const RingCompletion& completion) {
  RangeProgress& progress = *slots_[completion.slot].progress;
  if (!progress.Take(completion.result)) {
    Land(completion.slot);
  } else if (progress.again() > 0) {
    again_.push_back(completion.slot);
  } else {
    StartRead(completion.slot);
  }
}

// The pause delays the reports of other reads a little; the kernel is short of resources anyway.
void UringReader::TryAgain() {
  int attempt = 0;
  for (const uint32_t slot : again_) {
    attempt = std::max(attempt, slots_[slot].progress->again());
  }
  if (attempt > 0) {
    BackOff(attempt);
  }
  for (const uint32_t slot : again_) {
    StartRead(slot);
  }
  again_.clear();
}

void UringReader::Land(uint32_t slot) {
  LandedChunk landed{*std::move(slots_[slot].chunk), slots_[slot].progress->range(), ""};
  slots_[slot] = Slot();
  free_slots_.push_back(slot);
  {
    MutexLock lock(&mutex_);
    queue_.Landed(landed.chunk);
    if (landed.range.outcome != ReadOutcome::kOk) {
      landed.path = files_[static_cast<size_t>(landed.chunk.read->job.file)]->path;
    }
  }
  landed_.push_back(std::move(landed));
}

void UringReader::FinishLanded() {
  std::vector<ReadResult> over;
  uint64_t checked = 0;
  for (const LandedChunk& landed : landed_) {
    if (std::optional<ReadResult> result = FinishChunk(landed)) {
      over.push_back(*std::move(result));
    }
    checked += landed.chunk.length;
    if (checked >= kReportBytes) {
      Report(&over);
      checked = 0;
    }
  }
  Report(&over);
  landed_.clear();
}

void UringReader::Report(std::vector<ReadResult>* over) {
  for (ReadResult& result : *over) {
    sink_(std::move(result));
  }
  over->clear();
}

std::optional<ReadResult> UringReader::FinishChunk(const LandedChunk& landed) {
  const ReadChunk& chunk = landed.chunk;
  const ReadJob& job = chunk.read->job;
  ReadOutcome outcome = landed.range.outcome;
  absl::Status status = StatusOfRange(landed.range, landed.path, chunk.length, job.offset + chunk.offset);
  if (status.ok() && job.check) {
    status = job.check(chunk.offset, std::span<const std::byte>(job.dest + chunk.offset, chunk.length));
    outcome = status.ok() ? outcome : ReadOutcome::kCorrupt;
  }
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Finish(chunk, outcome, std::move(status), landed.range.bytes_read);
  }
  return over == nullptr ? std::nullopt : std::optional(ResultOf(*over, options_.clock->NowNanos()));
}

}  // namespace sluice::weightd
