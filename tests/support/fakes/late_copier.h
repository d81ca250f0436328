// LateCopier: a copier whose memory only it can reach, and whose copies end later, in an order of its own.
// Until a chunk has ended nothing of it is in the slab, and its sources are read at the end, so an engine
// that is ahead of its copier cannot go unnoticed. It accepts memory files as handles of a device.
//
// Thread safety: as Copier's; Hold(), Die(), Fail() and begun() may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/protocol/copier.h"
#include "common/protocol/shared_memory.h"

namespace sluice {

class LateCopier final : public Copier {
 public:
  static constexpr DeviceUuid kDevice = {0xde, 0xaf};

  explicit LateCopier(uint64_t seed) : random_(seed) {}

  bool Supports(HandleKind kind) const override { return kind == HandleKind::kCudaFd; }
  bool IsSynchronous() const override { return false; }

  absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) override {
    if (handle.device != kDevice) {
      return absl::NotFoundError("slab: no such device is here");
    }
    ASSIGN_OR_RETURN(Mapping map, MapSharedMemory(fd.get(), handle.bytes, /*writable=*/true, false));
    return std::shared_ptr<Slab>(new DeviceMemory(std::move(map)));
  }

  absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) override {
    const MutexLock lock(&mutex_);
    if (refuse_ > 0) {
      --refuse_;
      return absl::InternalError("the device takes no copy");
    }
    begun_.push_back({tag, &plan, &chunk, static_cast<DeviceMemory*>(slab)});
    return absl::OkStatus();
  }

  std::vector<CopyDone> Completed(int64_t /*max_wait_nanos*/) override {
    const MutexLock lock(&mutex_);
    std::vector<CopyDone> done;
    size_t count = begun_.empty() || held_ ? 0 : 1 + random_() % begun_.size();
    for (; count > 0; --count) {
      const size_t index = random_() % begun_.size();
      const Begun copy = begun_[index];
      begun_.erase(begun_.begin() + static_cast<ptrdiff_t>(index));
      if (dead_ || fail_ > 0) {
        fail_ -= dead_ ? 0 : 1;
        done.push_back({copy.tag, absl::InternalError("the device lost a copy")});
        continue;
      }
      CopyPlanChunk(*copy.plan, *copy.chunk, copy.memory->map.data());
      done.push_back({copy.tag, absl::OkStatus()});
    }
    return done;
  }

  // While held, nothing ends.
  void Hold(bool held) {
    const MutexLock lock(&mutex_);
    held_ = held;
  }
  // Kills the process: copies that were begun never arrive.
  void Die() {
    const MutexLock lock(&mutex_);
    dead_ = true;
  }
  // The next `begins` copies are refused, and of the begun ones the next `ends` fail.
  void Fail(int begins, int ends) {
    const MutexLock lock(&mutex_);
    refuse_ = begins;
    fail_ = ends;
  }
  size_t begun() {
    const MutexLock lock(&mutex_);
    return begun_.size();
  }

 private:
  struct DeviceMemory final : Slab {
    explicit DeviceMemory(Mapping mapping)
        : Slab(HandleKind::kCudaFd, mapping.bytes(), std::nullopt), map(std::move(mapping)) {}
    const Mapping map;
  };
  struct Begun {
    uint64_t tag = 0;
    const TransferPlan* plan = nullptr;
    const PlanChunk* chunk = nullptr;
    DeviceMemory* memory = nullptr;
  };

  Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Begun> begun_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  int refuse_ ABSL_GUARDED_BY(mutex_) = 0;
  int fail_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
