#include "kernels/cuda/copy/sources.h"

#include <cuda_runtime_api.h>

#include <utility>

namespace sluice::cuda {
namespace {

// Copies only read: where pages may not be written (a session's view of weightd's segments) CUDA is told so.
bool Lock(std::byte* base, uint64_t bytes) {
  for (const unsigned flags : {unsigned{cudaHostRegisterPortable},
                               unsigned{cudaHostRegisterPortable} | unsigned{cudaHostRegisterReadOnly}}) {
    if (cudaHostRegister(base, bytes, flags) == cudaSuccess) {
      return true;
    }
    cudaGetLastError();  // the next call of this thread shall not return it
  }
  return false;
}

}  // namespace

Sources::Sources() : thread_([this] { Run(); }) {}

Sources::~Sources() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const auto& [base, source] : sources_) {
    if (source.state == State::kLocked) {
      cudaHostUnregister(const_cast<std::byte*>(base));
    }
  }
}

void Sources::Start(int device) {
  {
    const std::lock_guard lock(mutex_);
    device_ = device_ < 0 ? device : device_;
  }
  changed_.notify_all();
}

void Sources::Add(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) {
  {
    const std::lock_guard lock(mutex_);
    sources_[memory.data()] = {memory.size(), std::move(owner)};
  }
  changed_.notify_all();
}

void Sources::Remove(const std::byte* base) {
  std::unique_lock lock(mutex_);
  const auto found = sources_.find(base);
  if (found == sources_.end()) {
    return;
  }
  found->second.removed = true;
  const bool waits = found->second.owner == nullptr;
  changed_.notify_all();
  if (waits) {
    changed_.wait(lock, [&] { return !sources_.contains(base); });
  }
}

bool Sources::IsLocked(const std::byte* data, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = sources_.upper_bound(data);
  if (after == sources_.begin()) {
    return false;
  }
  const auto& [base, source] = *--after;
  return source.state == State::kLocked && !source.removed && data + bytes <= base + source.bytes;
}

uint64_t Sources::locked_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [base, source] : sources_) {
    bytes += source.state == State::kLocked ? source.bytes : 0;
  }
  return bytes;
}

std::map<const std::byte*, Sources::Source>::iterator Sources::Next() {
  auto waiting = sources_.end();
  for (auto it = sources_.begin(); it != sources_.end(); ++it) {
    if (it->second.removed) {
      return it;
    }
    if (device_ >= 0 && it->second.state == State::kWaiting && waiting == sources_.end()) {
      waiting = it;
    }
  }
  return waiting;
}

void Sources::WaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    for (const auto& [base, source] : sources_) {
      if (source.removed || source.state == State::kWaiting || source.state == State::kLocking) {
        return false;
      }
    }
    return true;
  });
}

void Sources::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto next = Next();
    if (next == sources_.end()) {
      changed_.wait(lock);
      continue;
    }
    Source& source = next->second;  // stays: only this thread erases
    std::byte* const base = const_cast<std::byte*>(next->first);
    if (!source.removed) {
      source.state = State::kLocking;
      const int device = device_;
      lock.unlock();
      const bool locked = cudaSetDevice(device) == cudaSuccess && Lock(base, source.bytes);
      lock.lock();
      source.state = locked ? State::kLocked : State::kRefused;
    } else {
      const bool locked = source.state == State::kLocked;
      lock.unlock();
      if (locked) {
        cudaHostUnregister(base);
      }
      lock.lock();
      std::shared_ptr<const void> owner = std::move(source.owner);
      sources_.erase(next);
      lock.unlock();
      owner.reset();  // here the memory goes, if nobody else holds it
      lock.lock();
    }
    changed_.notify_all();
  }
}

}  // namespace sluice::cuda
