// LoadedCopier: the module's copier into CUDA memory, loaded with the first slab. A weightd whose clients
// have no CUDA slab never loads the module.
//
// Thread safety: as Copier's; sources may be added and removed on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "common/transfer/copier.h"

namespace sluice {

class LoadedCopier final : public Copier {
 public:
  bool Supports(HandleKind kind) const override { return IsCudaHandle(kind); }
  bool IsSynchronous() const override { return false; }
  // Also returns LoadCudaModule()'s errors.
  absl::StatusOr<std::shared_ptr<Slab>> Open(UniqueFd fd, const SlabHandle& handle) override;
  absl::Status Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) override;
  std::vector<CopyDone> Completed(int64_t max_wait_nanos) override;
  void AddSource(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) override;
  void RemoveSource(const std::byte* base) override;

 private:
  struct Source {
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  // Null before the first Open().
  Copier* loaded() const {
    const MutexLock lock(&mutex_);
    return loaded_.get();
  }
  absl::StatusOr<Copier*> Load();

  mutable Mutex mutex_;
  std::unique_ptr<Copier> loaded_ ABSL_GUARDED_BY(mutex_);  // once set, never reset
  std::map<const std::byte*, Source> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
