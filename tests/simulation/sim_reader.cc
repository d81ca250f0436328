#include "tests/simulation/sim_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_pack.h"

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;
// Small, so that extents have several chunks and both bounds are met.
constexpr weightd::ReadLimits kLimits = {
    .chunk_bytes = 2 * kPage, .in_flight_bytes = 6 * kPage, .prefetch_bytes = 4 * kPage};

}  // namespace

SimReader::SimReader(Scheduler* scheduler, const SimDisk& disk, uint64_t* next_fill, Hooks hooks)
    : scheduler_(scheduler), disk_(disk), next_fill_(next_fill), hooks_(std::move(hooks)), queue_(kLimits) {
  for (int i = 0; i < disk_.workers; ++i) {
    workers_.push_back(scheduler_->Spawn(absl::StrCat("disk", i), [this] { Work(); }));
  }
}

SimReader::~SimReader() {
  for (Scheduler::Task* worker : workers_) {
    scheduler_->Kill(worker);
  }
}

void SimReader::Submit(weightd::ReadJob job) {
  Job& known = jobs_[job.tag];
  if (known.fill != 0) {
    hooks_.fail(absl::StrCat("extent ", job.tag, " is submitted again before its report"));
  }
  known.fill = ++*next_fill_;
  known.length = job.length;
  known.demand = job.request_class == RequestClass::kDemand;
  queue_.Add(std::move(job));
}

void SimReader::Promote(uint64_t tag) {
  queue_.Promote(tag);
  if (auto found = jobs_.find(tag); found != jobs_.end()) {
    found->second.demand = true;
  }
}

void SimReader::Cancel(uint64_t tag) {
  if (auto found = jobs_.find(tag); found != jobs_.end()) {
    found->second.over = true;
  }
  if (const std::shared_ptr<weightd::QueuedRead> over = queue_.Cancel(tag)) {
    Report(*over);
  }
}

void SimReader::Work() {
  while (true) {
    std::optional<weightd::ReadChunk> chunk;
    scheduler_->Block([this, &chunk] {
      if (!chunk.has_value()) {
        chunk = queue_.Next();
      }
      return chunk.has_value();
    });
    DoChunk(*chunk);
  }
}

void SimReader::OnTaken(const weightd::ReadChunk& chunk) {
  jobs_.at(chunk.read->job.tag).handed += chunk.length;
  if (chunk.started_as == RequestClass::kDemand) {
    return;
  }
  prefetch_in_flight_ += chunk.length;
  if (prefetch_in_flight_ > std::max(kLimits.prefetch_bytes, chunk.length)) {
    hooks_.fail(absl::StrCat(prefetch_in_flight_, " bytes of prefetch are in flight"));
  }
  for (const auto& [tag, job] : jobs_) {
    if (job.demand && !job.over && job.handed < job.length) {
      hooks_.fail(absl::StrCat("a prefetch read starts while a demand for extent ", tag, " waits"));
    }
  }
}

void SimReader::DoChunk(const weightd::ReadChunk& chunk) {
  const auto hit = [this](uint64_t one_in) { return one_in != 0 && scheduler_->Chance(one_in); };
  OnTaken(chunk);
  weightd::QueuedRead& read = *chunk.read;
  read.started_nanos = read.started_nanos == 0 ? scheduler_->NowNanos() : read.started_nanos;
  const int64_t slowest = hit(disk_.slow) ? disk_.slow_nanos : disk_.latency_nanos;
  scheduler_->Sleep(1 + static_cast<int64_t>(scheduler_->Below(static_cast<uint64_t>(slowest))));
  weightd::ReadOutcome outcome = weightd::ReadOutcome::kOk;
  absl::Status status;
  uint64_t length = chunk.length;
  if (hit(disk_.io_error)) {
    outcome = weightd::ReadOutcome::kIoError;
    status = absl::DataLossError("simulated: EIO");
    length = scheduler_->Below(2) * kPage;
  } else if (hit(disk_.end_of_file)) {
    outcome = weightd::ReadOutcome::kEndOfFile;
    status = absl::DataLossError("simulated: the file ends early");
    length = scheduler_->Below(2) * kPage;
  }
  const bool misdirected = hit(disk_.misdirected);
  const uint64_t offset = read.job.offset + chunk.offset;
  Arrive(chunk, misdirected ? offset + kPage : offset, std::min(length, chunk.length), hit(disk_.bit_flip));
  queue_.Landed(chunk, 0);
  if (chunk.started_as == RequestClass::kPrefetch) {
    prefetch_in_flight_ -= chunk.length;
  }
  scheduler_->MaybeYield();
  if (outcome == weightd::ReadOutcome::kOk && read.job.check) {
    status = read.job.check(chunk.offset, {read.job.dest + chunk.offset, chunk.length});
    outcome = status.ok() ? outcome : weightd::ReadOutcome::kCorrupt;
  }
  if (outcome != weightd::ReadOutcome::kOk) {
    jobs_.at(read.job.tag).over = true;
  }
  const std::shared_ptr<weightd::QueuedRead> over =
      queue_.Finish(chunk, outcome, std::move(status), length, 0);
  const uint64_t fill = jobs_.at(read.job.tag).fill;
  if (over != nullptr) {
    Report(*over);
  }
  if (write_late && over != nullptr && scheduler_->Chance(10)) {
    scheduler_->Sleep(disk_.latency_nanos);
    Write(read.job.dest, static_cast<uint32_t>(read.job.file), read.job.offset, kPage, fill);
  }
}

void SimReader::Arrive(const weightd::ReadChunk& chunk, uint64_t offset, uint64_t length, bool flip) {
  const weightd::ReadJob& job = chunk.read->job;
  const uint64_t fill = jobs_.at(job.tag).fill;
  std::byte* const dest = job.dest + chunk.offset;
  for (uint64_t at = 0; at < length; at += kPage) {
    scheduler_->MaybeYield();
    Write(dest + at, static_cast<uint32_t>(job.file), offset + at, kPage, fill);
  }
  if (flip && length != 0) {
    dest[scheduler_->Below(length / kSimCellBytes) * kSimCellBytes] ^= std::byte{0x10};
  }
}

void SimReader::Write(std::byte* dest, uint32_t file, uint64_t offset, uint64_t length, uint64_t fill) {
  hooks_.check_write(dest, length);
  for (uint64_t at = 0; at < length; at += kSimCellBytes) {
    const SimCell cell{SimPositionWord(file, offset + at), fill};
    std::memcpy(dest + at, &cell, sizeof(cell));
  }
}

void SimReader::Report(const weightd::QueuedRead& read) {
  const auto job = jobs_.find(read.job.tag);
  if (job == jobs_.end()) {
    hooks_.fail(absl::StrCat("extent ", read.job.tag, " is reported twice"));
    return;
  }
  if (read.outcome == weightd::ReadOutcome::kOk) {
    hooks_.filled(read.job.tag, job->second.fill);
  }
  jobs_.erase(job);
  weightd::ReadResult result;
  result.tag = read.job.tag;
  result.outcome = read.outcome;
  result.status = read.status;
  result.bytes_read = read.bytes_read;
  result.started_nanos = read.started_nanos;
  result.ended_nanos = scheduler_->NowNanos();
  ++reporting_;
  sink_(std::move(result));
  --reporting_;
}

}  // namespace sluice
