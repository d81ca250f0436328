#include "common/protocol/transfer_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/session_abi.h"

namespace sluice {
namespace {

// Time that a copy thread waits for the end of copies before it looks for new work. A copy takes some 40
// microseconds (1 MiB at 25 GB/s), and a demand that arrives meanwhile should not wait longer than that.
constexpr int64_t kCollectNanos = 50'000;

std::vector<std::shared_ptr<Copier>> WithHost(std::vector<std::shared_ptr<Copier>> devices) {
  devices.push_back(std::make_shared<HostCopier>());
  return devices;
}

// Deleter that releases `held` after the slab.
std::shared_ptr<Slab> UntilUnmapped(std::shared_ptr<Slab> slab, std::shared_ptr<const void> held) {
  Slab* const raw = slab.get();
  return {raw, [slab = std::move(slab), held = std::move(held)](Slab*) mutable {
            slab.reset();
            held.reset();
          }};
}

}  // namespace

TransferEngine::TransferEngine(const Options& options, const Clock* clock, std::function<void()> wake,
                               std::vector<std::shared_ptr<Copier>> devices)
    : options_(options),
      clock_(clock),
      wake_(std::move(wake)),
      copiers_(WithHost(std::move(devices))),
      schedule_(options.schedule) {
  for (const std::shared_ptr<Copier>& copier : copiers_) {
    if (!copier->IsSynchronous()) {
      async_copiers_.push_back(copier.get());
    }
  }
  for (int i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this] { CopyLoop(); });
  }
  if (options.threads != 0) {
    threads_.emplace_back([this] { ArrivalLoop(); });
  }
}

TransferEngine::~TransferEngine() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  work_.SignalAll();
  arrivals_.SignalAll();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  // Copiers write from sources and into slabs that are destroyed next.
  while (TakeCompleted(kCollectNanos) || [this] {
    MutexLock lock(&mutex_);
    return !begun_.empty();
  }()) {
  }
}

Copier* TransferEngine::CopierOf(HandleKind kind) const {
  for (const std::shared_ptr<Copier>& copier : copiers_) {
    if (copier->Supports(kind)) {
      return copier.get();
    }
  }
  return nullptr;
}

uint32_t TransferEngine::AddLink(const LinkRate& rate) {
  MutexLock lock(&mutex_);
  links_.emplace(next_link_, Link{LinkModel(rate)});
  return next_link_++;
}

void TransferEngine::RemoveLink(uint32_t link) {
  MutexLock lock(&mutex_);
  auto found = links_.find(link);
  if (found != links_.end()) {
    found->second.removed = true;
    if (found->second.jobs == 0) {
      links_.erase(found);
    }
  }
}

void TransferEngine::Submit(TransferJob job) {
  LinkTransfer transfer;
  transfer.number = job.number;
  transfer.session = job.session;
  transfer.link = job.link;
  transfer.request_class = job.request_class;
  auto running = std::make_unique<Running>();
  running->left.resize(job.plan.tiles);
  for (const PlanChunk& chunk : job.plan.chunks) {
    transfer.chunks.push_back(chunk.bytes);
    ++running->left[chunk.tile];
  }
  running->added_nanos = clock_->NowNanos();
  running->job = std::move(job);
  {
    MutexLock lock(&mutex_);
    ++links_.at(transfer.link).jobs;
    ++stats_.transfers_waiting;
    running_[transfer.number] = std::move(running);
    schedule_.Add(std::move(transfer));
  }
  work_.Signal();
}

void TransferEngine::Cancel(uint64_t number) {
  {
    MutexLock lock(&mutex_);
    if (schedule_.Cancel(number) == TransferSchedule::CancelResult::kEnded) {
      End(number);
    }
  }
  work_.Signal();
  Wake();
}

bool TransferEngine::CancelIfNotStarted(uint64_t number) {
  {
    MutexLock lock(&mutex_);
    if (schedule_.Started(number) || schedule_.Cancel(number) != TransferSchedule::CancelResult::kEnded) {
      return false;
    }
    End(number);
  }
  Wake();
  return true;
}

void TransferEngine::Promote(uint64_t number) {
  {
    MutexLock lock(&mutex_);
    auto found = running_.find(number);
    if (found == running_.end()) {
      return;
    }
    found->second->job.request_class = RequestClass::kDemand;
    schedule_.Promote(number);
  }
  work_.Signal();
}

void TransferEngine::DropSession(uint64_t session) {
  MutexLock lock(&mutex_);
  schedule_.DropSession(session);
}

void TransferEngine::MapSlab(uint64_t session, uint32_t slab, UniqueFd fd, const SlabHandle& handle,
                             const LinkRate& rate, std::shared_ptr<const void> until_unmapped) {
  {
    MutexLock lock(&mutex_);
    map_jobs_.push_back({session, slab, std::move(fd), handle, rate, std::move(until_unmapped)});
  }
  work_.Signal();
}

void TransferEngine::AddSource(absl::Span<const std::byte> memory, const std::shared_ptr<const void>& owner) {
  for (const std::shared_ptr<Copier>& copier : copiers_) {
    copier->AddSource(memory, owner);
  }
}

void TransferEngine::RemoveSource(const std::byte* base) {
  for (const std::shared_ptr<Copier>& copier : copiers_) {
    copier->RemoveSource(base);
  }
}

std::vector<TransferEvent> TransferEngine::TakeEvents() {
  std::vector<TransferEvent> events;
  MutexLock lock(&mutex_);
  events.swap(events_);
  return events;
}

bool TransferEngine::HasEvents() const {
  MutexLock lock(&mutex_);
  return !events_.empty();
}

TransferStats TransferEngine::stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

int64_t TransferEngine::NextArrival() const {
  MutexLock lock(&mutex_);
  return in_flight_.empty() ? 0 : in_flight_.begin()->first;
}

// ---------------------------------------------------------------- threads

void TransferEngine::CopyLoop() {
  while (true) {
    Task task;
    bool taken = false;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && !(taken = Take(&task)) && (begun_.empty() || collecting_)) {
        work_.Wait(&mutex_);
      }
      if (stop_) {
        return;
      }
      collecting_ = collecting_ || !taken;
    }
    if (!taken) {
      TakeCompleted(kCollectNanos);
      MutexLock lock(&mutex_);
      collecting_ = false;
      continue;
    }
    work_.Signal();  // there may be work for more than one thread
    Do(std::move(task));
  }
}

void TransferEngine::ArrivalLoop() {
  prctl(PR_SET_TIMERSLACK, 1);  // the default of 50 us is as long as a chunk
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (!stop_ && (in_flight_.empty() || in_flight_.begin()->first > clock_->NowNanos())) {
        if (in_flight_.empty()) {
          arrivals_.Wait(&mutex_);
        } else {
          arrivals_.WaitFor(&mutex_,
                            std::chrono::nanoseconds(in_flight_.begin()->first - clock_->NowNanos()));
        }
      }
      if (stop_) {
        return;
      }
      ArriveDue(clock_->NowNanos());
    }
    work_.SignalAll();
    Wake();
  }
}

bool TransferEngine::Step() {
  Task task;
  bool taken = false;
  const bool completed = TakeCompleted(0);
  {
    MutexLock lock(&mutex_);
    ArriveDue(clock_->NowNanos());
    taken = Take(&task);
  }
  Wake();
  if (taken) {
    Do(std::move(task));
  }
  return taken || completed;
}

bool TransferEngine::Take(Task* task) {
  if (!map_jobs_.empty()) {
    task->map = std::move(map_jobs_.front());
    map_jobs_.pop_front();
    return true;
  }
  const std::optional<LinkChunk> chunk = schedule_.Next();
  if (!chunk.has_value()) {
    return false;
  }
  Running& running = *running_.at(chunk->number);
  if (running.first_nanos == 0) {
    running.first_nanos = clock_->NowNanos();
  }
  task->chunk = *chunk;
  task->plan = &running.job.plan;
  task->slab = running.job.slab.get();
  task->copier = CopierOf(task->slab->kind());
  task->tag = 0;
  if (!task->copier->IsSynchronous()) {
    task->tag = next_tag_++;
    begun_.emplace(task->tag, *chunk);
  }
  return true;
}

void TransferEngine::Do(Task task) {
  if (task.map.has_value()) {
    const SlabHandle& handle = task.map->handle;
    Copier* copier = CopierOf(handle.kind);
    absl::StatusOr<std::shared_ptr<Slab>> mapped =
        copier != nullptr
            ? copier->Open(std::move(task.map->fd), handle)
            : absl::UnimplementedError(absl::StrCat(
                  "slab: this weightd copies into no memory of handle kind ", static_cast<int>(handle.kind)));
    if (mapped.ok()) {
      mapped = UntilUnmapped(*std::move(mapped), std::move(task.map->until_unmapped));
    }
    MutexLock lock(&mutex_);
    events_.push_back(SlabMapped{task.map->session, task.map->slab, task.map->rate, std::move(mapped)});
    announced_ = false;
  } else {
    absl::Status begun =
        task.copier->Begin(task.tag, *task.plan, task.plan->chunks[task.chunk.index], task.slab);
    MutexLock lock(&mutex_);
    if (task.tag == 0 || !begun.ok()) {
      begun_.erase(task.tag);
      OnCopied(task.chunk, std::move(begun));
    }
  }
  Wake();
}

bool TransferEngine::TakeCompleted(int64_t max_wait_nanos) {
  bool any = false;
  for (Copier* copier : async_copiers_) {
    std::vector<CopyDone> done = copier->Completed(any ? 0 : max_wait_nanos);
    MutexLock lock(&mutex_);
    for (CopyDone& one : done) {
      const auto found = begun_.find(one.tag);
      if (found != begun_.end()) {
        const LinkChunk chunk = found->second;
        begun_.erase(found);
        OnCopied(chunk, std::move(one.error));
        any = true;
      }
    }
  }
  if (any) {
    Wake();
  }
  return any;
}

// ---------------------------------------------------------------- arrivals

void TransferEngine::OnCopied(const LinkChunk& chunk, absl::Status copied) {
  if (!copied.ok()) {
    running_.at(chunk.number)->error.Update(copied);
    schedule_.Cancel(chunk.number);  // chunks in flight continue, no more are begun
    if (schedule_.Deliver(chunk)) {
      End(chunk.number);
    }
    return;
  }
  Link& link = links_.at(chunk.link);
  const int64_t now = clock_->NowNanos();
  if (!link.model.rate().throttled()) {
    Arrive(chunk, now);
    return;
  }
  // The copy itself is part of the modelled time: it began when there was room.
  const int64_t ready = std::max(running_.at(chunk.number)->added_nanos, link.free_nanos);
  const int64_t arrives = link.model.Book(chunk.bytes, ready, now);
  if (arrives <= now && in_flight_.empty()) {
    Arrive(chunk, arrives);
    return;
  }
  in_flight_.emplace(arrives, chunk);
  arrivals_.Signal();
}

void TransferEngine::ArriveDue(int64_t now) {
  while (!in_flight_.empty() && in_flight_.begin()->first <= now) {
    const auto [nanos, chunk] = *in_flight_.begin();
    in_flight_.erase(in_flight_.begin());
    Arrive(chunk, nanos);
  }
}

void TransferEngine::Arrive(const LinkChunk& chunk, int64_t nanos) {
  Running& running = *running_.at(chunk.number);
  running.link_bytes += chunk.bytes;
  running.last_nanos = std::max(running.last_nanos, nanos);
  stats_.link_bytes += chunk.bytes;
  stats_.link_demand_bytes += running.job.request_class == RequestClass::kDemand ? chunk.bytes : 0;
  Link& link = links_.at(chunk.link);
  link.free_nanos = std::max(link.free_nanos, nanos);
  PublishTiles(&running, running.job.plan.chunks[chunk.index].tile);
  if (schedule_.Deliver(chunk)) {
    End(chunk.number);
  }
}

void TransferEngine::PublishTiles(Running* running, uint32_t tile) {
  --running->left[tile];
  const uint32_t before = running->landed;
  while (running->landed < running->left.size() && running->left[running->landed] == 0) {
    ++running->landed;
  }
  if (running->landed != before && running->job.progress != nullptr) {
    running->job.progress->store(PackProgress(running->job.request, running->landed),
                                 std::memory_order_release);
  }
}

void TransferEngine::End(uint64_t number) {
  auto found = running_.find(number);
  const Running& running = *found->second;
  TransferEnd end;
  end.number = number;
  end.cancelled = running.landed < running.left.size();
  end.error = running.error;
  end.link_bytes = running.link_bytes;
  end.copy_nanos = std::max<int64_t>(0, running.last_nanos - running.first_nanos);
  ++stats_.transfers;
  stats_.transfers_cancelled += end.cancelled ? 1 : 0;
  --stats_.transfers_waiting;
  auto link = links_.find(running.job.link);
  if (--link->second.jobs == 0 && link->second.removed) {
    links_.erase(link);
  }
  events_.push_back(end);
  announced_ = false;
  running_.erase(found);
}

void TransferEngine::Wake() {
  {
    MutexLock lock(&mutex_);
    if (announced_) {
      return;
    }
    announced_ = true;
  }
  wake_();
}

}  // namespace sluice
