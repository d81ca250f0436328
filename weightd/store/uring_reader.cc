#include "weightd/store/uring_reader.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace sluice::weightd {
namespace {

// Maximum number of payload files of all packs that a weightd serves.
constexpr uint32_t kMaxFiles = 1024;
constexpr uint64_t kWakeTag = ~0ull;

const char* WhatHelps(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "sysctl kernel.io_uring_disabled=0 and a seccomp profile that allows io_uring lift this";
    case ENOSYS:
    case EINVAL:
      return "it takes a kernel from 5.19 on and no sandbox that lacks it";
    case ENOMEM:
      return "a higher limit of locked memory lifts this (LimitMEMLOCK=)";
    default:
      return "`sluice doctor` looks closer";
  }
}

class KernelRing final : public ReadRing {
 public:
  ~KernelRing() override {
    if (made_) {
      io_uring_queue_exit(&ring_);
    }
  }

  // Returns 0, or the errno of the step that `step()` names.
  int Make(uint32_t depth) {
    int error = SetUp(depth);
    if (error == 0) {
      step_ = "registering a file table";
      error = -io_uring_register_files_sparse(&ring_, kMaxFiles);
    }
    if (error == 0) {
      step_ = "making an eventfd";
      wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      error = wake_.valid() ? 0 : errno;
    }
    return error == 0 ? TryRead() : error;
  }
  const char* step() const { return step_; }

  absl::Status AddFile(ReadFile* file) override {
    if (files_ == kMaxFiles) {
      return absl::ResourceExhaustedError(absl::StrCat("io_uring: a ring takes ", kMaxFiles, " files"));
    }
    if (const int error = SetFile(files_, file->fd()); error != 0) {
      return absl::UnavailableError(
          absl::StrCat("io_uring: registering a file: ", std::strerror(error), " (errno ", error, ")"));
    }
    ++files_;
    return absl::OkStatus();
  }

  void Read(uint32_t slot, int file, std::byte* dest, uint32_t length, uint64_t offset) override {
    io_uring_sqe* entry = Entry();
    io_uring_prep_read(entry, file, dest, length, offset);
    entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, slot);
  }

  absl::Status Start() override { return Submitted(io_uring_submit(&ring_)); }

  absl::Status Wait(std::vector<RingCompletion>* completions) override {
    completions->clear();
    WatchWake();
    const int submitted = SubmitAndWait();
    Reap(completions);
    return Submitted(submitted);
  }

  void Wake() override { eventfd_write(wake_.get(), 1); }

 private:
  static absl::Status Submitted(int result) {
    return result >= 0
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrCat("io_uring: submitting reads: ", std::strerror(-result)));
  }

  int SubmitAndWait() {
    int submitted;
    do {
      submitted = io_uring_submit_and_wait(&ring_, 1);
    } while (submitted == -EINTR);
    return submitted;
  }

  int SetUp(uint32_t depth) {
    step_ = "setting up a ring";
    io_uring_params params{};
    params.flags = IORING_SETUP_COOP_TASKRUN;  // completions need no interrupt of the engine's thread
    int error = -io_uring_queue_init_params(depth + 1, &ring_, &params);
    if (error == EINVAL) {  // before Linux 5.19
      params = {};
      error = -io_uring_queue_init_params(depth + 1, &ring_, &params);
    }
    made_ = error == 0;
    return error;
  }

  int SetFile(uint32_t at, int fd) {
    const int done = io_uring_register_files_update(&ring_, at, &fd, 1);
    return done < 0 ? -done : 0;
  }

  void Reap(std::vector<RingCompletion>* completions) {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      if (entry->user_data == kWakeTag) {
        watching_ = false;
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
      } else {
        completions->push_back({static_cast<uint32_t>(entry->user_data), entry->res});
      }
      io_uring_cqe_seen(&ring_, entry);
    }
  }

  // Never null: the ring has an entry for every read and one for the wake.
  io_uring_sqe* Entry() { return io_uring_get_sqe(&ring_); }

  void WatchWake() {
    if (!watching_) {
      io_uring_sqe* entry = Entry();
      io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
      io_uring_sqe_set_data64(entry, kWakeTag);
      watching_ = true;
    }
  }

  // Reads from a file in memory through the registered table, as packs are read.
  int TryRead() {
    step_ = "trying a read";
    UniqueFd file(memfd_create("sluice-try", MFD_CLOEXEC));
    std::array<std::byte, 64> bytes{};
    bytes.fill(std::byte{0x5a});
    if (!file.valid() || write(file.get(), bytes.data(), bytes.size()) != ssize_t{bytes.size()}) {
      return errno;
    }
    if (const int error = SetFile(0, file.get()); error != 0) {
      return error;
    }
    std::array<std::byte, 64> got{};
    Read(0, 0, got.data(), got.size(), 0);
    std::vector<RingCompletion> completions;
    while (completions.empty()) {
      if (!Wait(&completions).ok() && completions.empty()) {
        return EPERM;
      }
    }
    const int64_t result = completions.front().result;
    if (result < 0) {
      return static_cast<int>(-result);
    }
    return got == bytes ? SetFile(0, -1) : EIO;
  }

  io_uring ring_{};
  bool made_ = false;
  bool watching_ = false;
  uint32_t files_ = 0;
  UniqueFd wake_;
  const char* step_ = "";
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadRing>> MakeReadRing(uint32_t depth) {
  auto ring = std::make_unique<KernelRing>();
  if (const int error = ring->Make(depth); error != 0) {
    return absl::UnavailableError(absl::StrCat("io_uring: ", ring->step(), ": ", std::strerror(error),
                                               " (errno ", error, "); ", WhatHelps(error)));
  }
  return ring;
}

int TryReadRing() {
  KernelRing ring;
  return ring.Make(1);
}

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
  files_.push_back({path, std::move(file)});
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

int64_t UringReader::ProgressNanos(uint64_t tag) const {
  MutexLock lock(&mutex_);
  return queue_.ProgressNanos(tag);
}

std::string UringReader::Describe() const {
  MutexLock lock(&mutex_);
  return DescribeReads("uring", files_);
}

void UringReader::Run() {
  std::vector<RingCompletion> completions;
  wants_wake_.store(true);
  while (StartReads()) {
    if (!landed_.empty()) {
      ring_->Wake();  // from the page cache: the ring is looked at, not waited for
    }
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
  slots_[slot].file = files_[static_cast<size_t>(chunk->read->job.file)].file.get();
  slots_[slot].chunk = std::move(chunk);
  return slot;
}

bool UringReader::StartReads() {
  bool idle = free_slots_.size() == slots_.size();
  uint64_t copied = 0;
  while (copied < kReportBytes) {
    const std::optional<uint32_t> slot = TakeNext();
    if (!slot.has_value()) {
      break;
    }
    const ReadJob& job = slots_[*slot].chunk->read->job;
    const uint64_t length = slots_[*slot].chunk->length;
    if (job.prepare) {
      job.prepare(job.dest + slots_[*slot].chunk->offset, length);
    }
    if (!StartRead(*slot)) {
      copied += length;
      continue;
    }
    if (idle) {  // the disk gets work while the rest is prepared
      static_cast<void>(ring_->Start());
      idle = false;
    }
  }
  MutexLock lock(&mutex_);
  return !stop_ || free_slots_.size() < slots_.size();
}

bool UringReader::StartRead(uint32_t slot) {
  const ReadChunk& chunk = *slots_[slot].chunk;
  const ReadJob& job = chunk.read->job;
  RangeProgress& progress = *slots_[slot].progress;
  const auto at = [&] { return chunk.offset + progress.range().good; };
  const uint64_t cached =
      job.past_cache ? 0 : slots_[slot].file->CopyCached(job.dest + at(), progress.left(), job.offset + at());
  if (cached > 0 && !progress.TakeCached(cached)) {
    Land(slot);
    return false;
  }
  ring_->Read(slot, job.file, job.dest + at(), static_cast<uint32_t>(progress.left()), job.offset + at());
  return true;
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
    queue_.Landed(landed.chunk, options_.clock->NowNanos());
    if (landed.range.outcome != ReadOutcome::kOk) {
      landed.path = files_[static_cast<size_t>(landed.chunk.read->job.file)].path;
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
  ReadOutcome outcome;
  absl::Status status = CheckLanded(landed, &outcome);
  std::shared_ptr<QueuedRead> over;
  {
    MutexLock lock(&mutex_);
    over = queue_.Finish(landed.chunk, outcome, std::move(status), landed.range.bytes_read,
                         landed.range.cached_bytes);
  }
  return over == nullptr ? std::nullopt : std::optional(ResultOf(*over, options_.clock->NowNanos()));
}

}  // namespace sluice::weightd
