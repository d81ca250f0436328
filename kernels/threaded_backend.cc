#include "kernels/threaded_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

ThreadedBackend::ThreadedBackend(std::unique_ptr<Backend> inner)
    : inner_(std::move(inner)), thread_([this] { Run(); }) {}

ThreadedBackend::~ThreadedBackend() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void ThreadedBackend::Run() {
  while (const Item* item = TakeNext()) {
    const int64_t began = clock_.NowNanos();
    absl::Status status = RunItem(*item);
    MutexLock lock(&mutex_);
    const uint64_t number = ran_.load(std::memory_order_relaxed) + 1;
    began_[number % kTimedEvents] = began;
    ended_[number % kTimedEvents] = clock_.NowNanos();
    if (error_.ok() && !status.ok()) {
      error_ = std::move(status);
    }
    ran_.store(number, std::memory_order_release);
    changed_.SignalAll();
  }
}

// Returns the next item, or null at the end. The inner backend's workers spin while there is work, and for a
// moment after.
ThreadedBackend::Item* ThreadedBackend::TakeNext() {
  const uint64_t ran = ran_.load(std::memory_order_relaxed);  // written by this thread only
  const auto waits = [&] { return queued_.load(std::memory_order_acquire) == ran; };
  const int64_t until = clock_.NowNanos() + kLingerNanos;
  while (waits() && clock_.NowNanos() < until) {
    std::this_thread::yield();
  }
  if (waits()) {
    SetStepping(false);
    MutexLock lock(&mutex_);
    while (waits() && !stopping_) {
      changed_.Wait(&mutex_);
    }
  }
  {
    MutexLock lock(&mutex_);
    if (stopping_) {
      return nullptr;
    }
  }
  SetStepping(true);
  return &items_[(ran + 1) % kDepth];
}

void ThreadedBackend::SetStepping(bool stepping) {
  if (stepping_ != stepping) {
    stepping_ = stepping;
    MutexLock lock(&inner_mutex_);
    stepping ? inner_->BeginStep() : inner_->EndStep();
  }
}

absl::Status ThreadedBackend::RunItem(const Item& item) {
  MutexLock lock(&inner_mutex_);
  Queue& queue = inner_->queue();
  if (!item.copies) {
    return queue.Enqueue(item.operation.get());
  }
  return item.destination != nullptr ? queue.Download(item.place, item.bytes, item.destination)
                                     : queue.Upload(item.data.data(), item.bytes, item.place);
}

ThreadedBackend::Item& ThreadedBackend::Free() {
  if (pushed_ >= kDepth) {
    Await(pushed_ + 1 - kDepth);
  }
  return items_[(pushed_ + 1) % kDepth];
}

void ThreadedBackend::Push() {
  ++pushed_;
  MutexLock lock(&mutex_);
  queued_.store(pushed_, std::memory_order_release);
  changed_.SignalAll();
}

absl::Status ThreadedBackend::Enqueue(const Operation& operation) {
  Item& item = Free();
  item.copies = false;
  item.operation.Keep(operation);
  Push();
  return absl::OkStatus();
}

absl::Status ThreadedBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  Item& item = Free();
  item.copies = true;
  item.place = destination;
  item.bytes = bytes;
  item.destination = nullptr;
  item.data.assign(static_cast<const std::byte*>(source), static_cast<const std::byte*>(source) + bytes);
  Push();
  return absl::OkStatus();
}

absl::Status ThreadedBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
  Item& item = Free();
  item.copies = true;
  item.place = source;
  item.bytes = bytes;
  item.destination = destination;
  Push();
  return absl::OkStatus();
}

absl::Status ThreadedBackend::Wait(Event event) {
  if (event.value > pushed_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a wait for point ", event.value, " of ", pushed_, ": it was never recorded"));
  }
  Await(event.value);
  MutexLock lock(&mutex_);
  return error_;
}

void ThreadedBackend::Await(uint64_t number) {
  const int64_t until = clock_.NowNanos() + kLingerNanos;
  while (!IsDone({number}) && clock_.NowNanos() < until) {
    std::this_thread::yield();
  }
  if (IsDone({number})) {
    return;
  }
  waits_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(&mutex_);
  while (!IsDone({number})) {
    changed_.Wait(&mutex_);
  }
}

absl::StatusOr<double> ThreadedBackend::Seconds(Event from, Event to) {
  MutexLock lock(&mutex_);
  const uint64_t ran = ran_.load(std::memory_order_relaxed);
  if (from.value > to.value || from.value + kTimedEvents <= ran) {
    return absl::OutOfRangeError(absl::StrCat("no times of the points ", from.value, " and ", to.value,
                                              ": known are the last ", kTimedEvents, " of ", ran));
  }
  if (to.value > ran) {
    return absl::FailedPreconditionError(absl::StrCat("point ", to.value, " is not done"));
  }
  return from.value == to.value ? 0
                                : static_cast<double>(ended_[to.value % kTimedEvents] -
                                                      began_[(from.value + 1) % kTimedEvents]) *
                                      1e-9;
}

// Memory.

absl::StatusOr<BufferId> ThreadedBackend::Allocate(uint64_t bytes, BufferKind kind) {
  MutexLock lock(&inner_mutex_);
  return inner_->Allocate(bytes, kind);
}

absl::StatusOr<SharedBuffer> ThreadedBackend::AllocateShared(uint64_t bytes) {
  MutexLock lock(&inner_mutex_);
  return inner_->AllocateShared(bytes);
}

absl::StatusOr<BufferId> ThreadedBackend::Import(absl::Span<const std::byte> memory) {
  MutexLock lock(&inner_mutex_);
  return inner_->Import(memory);
}

absl::Status ThreadedBackend::Free(BufferId buffer) {
  MutexLock lock(&inner_mutex_);
  return inner_->Free(buffer);
}

const std::byte* ThreadedBackend::HostRead(BufferRef ref, uint64_t bytes) {
  MutexLock lock(&inner_mutex_);
  return inner_->HostRead(ref, bytes);
}

std::byte* ThreadedBackend::HostWrite(BufferRef ref, uint64_t bytes) {
  MutexLock lock(&inner_mutex_);
  return inner_->HostWrite(ref, bytes);
}

absl::Status ThreadedBackend::SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) {
  MutexLock lock(&inner_mutex_);
  return inner_->SetSparseSwitches(entries);
}

BackendCounters ThreadedBackend::Counters() const {
  BackendCounters counters = inner_->Counters();
  counters.waits = waits_.load(std::memory_order_relaxed);
  return counters;
}

std::string ThreadedBackend::Describe() const {
  return absl::StrCat(inner_->Describe(), ", on a thread of its own");
}

}  // namespace sluice
