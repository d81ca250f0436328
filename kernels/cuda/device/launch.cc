#include "kernels/cuda/device/launch.h"

#include <cstring>

namespace sluice::cuda {
namespace {

constexpr size_t kArgumentAlignment = 16;

size_t Up(size_t bytes) { return (bytes + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment; }

}  // namespace

void LaunchList::Add(const KernelCall& call) {
  launches_.push_back({call.kernel,
                       {call.grid.x, call.grid.y, call.grid.z},
                       {call.block.x, call.block.y, call.block.z},
                       call.shared,
                       arguments_.size(),
                       call.count});
  for (size_t i = 0; i < call.count; ++i) {
    const size_t at = bytes_.size();
    arguments_.push_back({at, call.arguments[i].equal});
    bytes_.resize(at + Up(call.arguments[i].bytes));
    std::memcpy(&bytes_[at], call.arguments[i].value, call.arguments[i].bytes);
  }
}

void LaunchList::Clear() {
  launches_.clear();
  arguments_.clear();
  bytes_.clear();
}

bool LaunchList::operator==(const LaunchList& other) const {
  if (launches_ != other.launches_ || arguments_ != other.arguments_) {
    return false;
  }
  for (const Argument& argument : arguments_) {
    if (!argument.equal(&bytes_[argument.at], &other.bytes_[argument.at])) {
      return false;
    }
  }
  return true;
}

cudaError_t LaunchList::Issue(cudaStream_t stream) const {
  for (const Launch& launch : launches_) {
    void* values[KernelCall::kMaxArguments];
    for (size_t i = 0; i < launch.count; ++i) {
      // CUDA only reads there.
      values[i] = const_cast<uint8_t*>(&bytes_[arguments_[launch.first_argument + i].at]);
    }
    const cudaError_t error =
        cudaLaunchKernel(launch.kernel, {launch.grid[0], launch.grid[1], launch.grid[2]},
                         {launch.block[0], launch.block[1], launch.block[2]}, values, launch.shared, stream);
    if (error != cudaSuccess) {
      cudaGetLastError();  // said here
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t Launcher::Put(const KernelCall& call) {
  if (call.shared > kDefaultShared) {
    uint64_t& allowed = allowed_[call.kernel];
    if (call.shared > allowed) {
      const cudaError_t error = cudaFuncSetAttribute(call.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(call.shared));
      if (error != cudaSuccess) {
        return error;
      }
      allowed = call.shared;
    }
  }
  ++launched_;
  if (list_ != nullptr) {
    list_->Add(call);
    return cudaSuccess;
  }
  void* values[KernelCall::kMaxArguments];
  for (size_t i = 0; i < call.count; ++i) {
    values[i] = call.arguments[i].value;
  }
  // The call's own result: cudaGetLastError() would say again what an earlier call of this thread left.
  const cudaError_t error =
      cudaLaunchKernel(call.kernel, call.grid, call.block, values, call.shared, stream_);
  if (error != cudaSuccess) {
    cudaGetLastError();  // said here
  }
  return error;
}

}  // namespace sluice::cuda
