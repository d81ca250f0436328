// State shared by the operations of a GPU: its stream, the tables of a call, the launches that are kept for a
// graph, and one workspace that operations use in turn, since they run in order.
//
// Thread safety: thread-compatible; owned by one backend.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/calls.h"
#include "kernels/cuda/device/experts.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/device/row_kernels.h"
#include "kernels/cuda/fast_products.h"
#include "kernels/cuda/step_graph.h"
#include "kernels/cuda/tables.h"

namespace sluice::cuda {

// Host structs as the kernels' headers have them. Index lists are the host's: whoever takes them copies them.
DeviceMatrix MatrixOf(const CallWeights& weights);
DeviceNorm NormOf(const CallNorm& norm);

// Rows of activations made ready for the matrices of a call: normed, picked, rounded for each group size
// among them, copied where plain matrices need rows aligned to 16 bytes. A single token's row is none of
// that: the blocks that multiply it norm and round it themselves, which costs less than a launch.
struct PreparedRows {
  const float* x = nullptr;
  uint64_t stride = 0;
  uint64_t head_stride = 0;
  const uint8_t* rounded[8] = {};  // by group / 16 - 1
  const uint8_t* Rounded(const DeviceMatrix& m) const {
    return m.group == 0 ? nullptr : rounded[m.group / 16 - 1];
  }
};
struct RowsToPrepare {
  const float* x = nullptr;
  uint64_t stride = 0;
  uint64_t head_stride = 0;
  uint32_t heads = 1;
  const uint32_t* ids = nullptr;  // device
  uint32_t tokens = 0;
  uint32_t cols = 0;
  DeviceNorm norm;
  bool plain = false;   // some matrix is plain
  bool rounds[8] = {};  // by group / 16 - 1
  void Note(const DeviceMatrix& m);
};

// The parts of a launch of RoutedExperts that depend on a numbered list of experts (ops.h), for x rounded by
// the blocks or not.
struct NumberedExperts {
  bool rounded_by_blocks = false;
  RowsToPrepare rows;    // `plain` and `rounds` alone
  ExpertsLaunch launch;  // its shape: without places
};

struct Device {
  cudaStream_t stream = nullptr;
  Launcher launcher;  // of the stream
  BackendLimits limits;
  uint64_t shared_bytes = 0;  // of a block, the most that it may ask for
  uint8_t* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  std::unique_ptr<Tables> tables;
  std::unique_ptr<StepGraph> graph;
  std::unique_ptr<FastProducts> fast;                       // null: every product is exact
  absl::flat_hash_map<uint64_t, NumberedExperts> numbered;  // cleared when a buffer is freed

  ~Device();
  // Sets if launches from here on, and their tables, are kept until HandOver(). REQUIRES: none is kept.
  void KeepLaunches(bool keep);
  // Enqueues the tables of what is kept, then it, as one launch where it has come before.
  absl::Status HandOver();
};

// The default device's stream, workspace and tables for these limits.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const BackendLimits& limits);

// Hands out the workspace from its beginning: what an operation takes is its own until the next operation.
class Workspace {
 public:
  explicit Workspace(Device& device) : device_(device) {}
  // RESOURCE_EXHAUSTED naming `what` and the bytes. Aligned to 256.
  absl::StatusOr<uint8_t*> Take(uint64_t bytes, const char* what);
  uint64_t left() const { return device_.workspace_bytes - used_; }

 private:
  Device& device_;
  uint64_t used_ = 0;
};

// The operations' functions, as every device has them: ops_*.cc.
#define SLUICE_CUDA_RUN(Name) absl::Status Run(Device& device, const Name##Call& call);
SLUICE_OPERATIONS(SLUICE_CUDA_RUN)
#undef SLUICE_CUDA_RUN

// True if blocks norm and round the rows themselves.
bool RoundedByBlocks(const RowsToPrepare& rows);
// Workspace bytes of one token.
uint64_t PreparedBytes(const RowsToPrepare& rows);
absl::StatusOr<PreparedRows> Prepare(Device& device, const RowsToPrepare& rows, Workspace* workspace);

}  // namespace sluice::cuda
