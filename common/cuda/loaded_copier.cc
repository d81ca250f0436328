#include "common/cuda/loaded_copier.h"

#include <utility>

#include "common/cuda/cuda_module.h"
#include "common/status.h"

namespace sluice {

absl::StatusOr<Copier*> LoadedCopier::Load() {
  ASSIGN_OR_RETURN(const CudaModuleApi* const module, LoadCudaModule());
  const MutexLock lock(&mutex_);
  if (loaded_ == nullptr) {
    absl::Status error;
    loaded_.reset(module->new_copier(&error));
    RETURN_IF_ERROR(error);
    for (auto& [base, source] : sources_) {
      loaded_->AddSource({base, source.bytes}, source.owner);
    }
  }
  return loaded_.get();
}

absl::StatusOr<std::shared_ptr<Slab>> LoadedCopier::Open(UniqueFd fd, const SlabHandle& handle) {
  ASSIGN_OR_RETURN(Copier* const loaded, Load());
  return loaded->Open(std::move(fd), handle);
}

absl::Status LoadedCopier::Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) {
  return loaded()->Begin(tag, plan, chunk, slab);  // there is a slab, so there is a copier
}

std::vector<CopyDone> LoadedCopier::Completed(int64_t max_wait_nanos) {
  Copier* const copier = loaded();
  return copier == nullptr ? std::vector<CopyDone>() : copier->Completed(max_wait_nanos);
}

void LoadedCopier::AddSource(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) {
  const MutexLock lock(&mutex_);
  if (loaded_ != nullptr) {
    loaded_->AddSource(memory, owner);
  }
  sources_[memory.data()] = {memory.size(), std::move(owner)};
}

void LoadedCopier::RemoveSource(const std::byte* base) {
  Copier* copier = nullptr;
  {
    const MutexLock lock(&mutex_);
    sources_.erase(base);
    copier = loaded_.get();
  }
  if (copier != nullptr) {
    copier->RemoveSource(base);  // may take a while
  }
}

}  // namespace sluice
