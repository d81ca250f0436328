// Copies of gpu_bench: a copy loop like weightd's, and another process that runs one on request.
//
// Thread safety: thread-compatible. An error ends the program with a message.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/protocol/cuda_module.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/transfer_plan.h"
#include "kernels/backend.h"

namespace sluice::bench {

inline void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
    std::exit(EXIT_FAILURE);
  }
}
template <typename T>
T Get(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

inline double Now() { return static_cast<double>(MonotonicClock().NowNanos()) * 1e-9; }

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline std::unique_ptr<Copier> NewCopier(const CudaModuleApi& cuda) {
  absl::Status error;
  std::unique_ptr<Copier> copier(cuda.new_copier(&error));
  Check(error);
  return copier;
}

inline std::unique_ptr<Backend> NewBackend(const CudaModuleApi& cuda, const BackendLimits& limits) {
  absl::Status error;
  std::unique_ptr<Backend> backend(cuda.new_backend(limits, &error));
  Check(error);
  return backend;
}

// Copies a segment into a slab repeatedly, as weightd does.
class CopyLoop {
 public:
  // `fd` is borrowed.
  CopyLoop(const CudaModuleApi& cuda, int fd, const SlabHandle& handle, uint64_t chunk_bytes);
  ~CopyLoop();
  // Copies for about `seconds`; returns the bytes per second.
  double Run(double seconds);

 private:
  uint64_t Reap();

  const std::unique_ptr<Copier> copier_;
  const std::shared_ptr<Slab> slab_;
  const std::shared_ptr<const SharedMemory> segment_;
  TransferPlan plan_;
  uint64_t tag_ = 0;
};

// OtherProcess: a second process of this program that copies into `shared` while this one does other work.
class OtherProcess {
 public:
  explicit OtherProcess(const SharedBuffer& shared);
  ~OtherProcess();
  void Begin(double seconds);
  // Returns the bytes per second since Begin().
  double End();

 private:
  pid_t child_ = -1;
  std::FILE* out_ = nullptr;
  std::FILE* in_ = nullptr;
};

// IsCopyChild(): true if these are the arguments of that process. CopyChild(): its main function.
bool IsCopyChild(int argc, char** argv);
int CopyChild(char** argv);

}  // namespace sluice::bench
