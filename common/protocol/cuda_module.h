// Access to CUDA for programs that link none of it: the loaded module, and a copier that loads it with the
// first slab.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/protocol/copier.h"
#include "common/protocol/memory_handle.h"

namespace sluice {

// The module of the device cuda: one shared object that holds all code that includes a CUDA header. A daemon
// loads it when its options select that device, so one build serves machines with and without a GPU.
//
// Thread safety: the functions here are thread-safe; the table is constant.

class Backend;
struct BackendLimits;

// Facts about the GPU of the device cuda, read with our context in place.
struct CudaDeviceFacts {
  std::string name;
  DeviceUuid uuid = {};
  uint32_t capability = 0;  // 80 for 8.0
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;     // not used by any process
  uint64_t granule_bytes = 0;  // shared memory comes in whole granules
};

// The module's functions for its daemon, found by one C symbol. They return objects of the interfaces below,
// which live no longer than the process.
struct CudaModuleApi {
  // Interface version: identifies the headers that both sides were compiled from. If it differs, no other
  // member is read.
  const char* interface_digest;
  // FAILED_PRECONDITION naming the missing part: a driver (or a newer one), or a device.
  absl::Status (*check)();
  // Creates our context first, which takes device memory and some tenths of a second.
  absl::StatusOr<CudaDeviceFacts> (*facts)();
  // kernels/cuda/cuda_backend.h. The caller owns it; null with the reason in `error`.
  Backend* (*new_backend)(const BackendLimits& limits, absl::Status* error);
  // kernels/cuda/cuda_copier.h. Creates no context before its first Open().
  Copier* (*new_copier)(absl::Status* error);
};

inline constexpr char kCudaModuleSymbol[] = "sluice_cuda_module";
using CudaModuleFn = const CudaModuleApi*();

// Path of the module: SLUICE_CUDA_MODULE if it is set, else beside the program, else the package's folder.
std::vector<std::string> CudaModulePaths();

// Loads the module once for the process, and checks driver and device. FAILED_PRECONDITION says which of
// module, driver and device is missing and how to get it.
absl::StatusOr<const CudaModuleApi*> LoadCudaModule();

// LoadedCopier: the module's copier into CUDA memory, loaded with the first slab. A weightd whose clients
// have no CUDA slab never loads the module.
//
// Thread safety: as Copier's; sources may be added and removed on any thread.
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
