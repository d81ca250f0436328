// Launches kernels: into a stream at once, or to the end of a list that is handed over later
// (../step_graph.h).
//
// Thread safety: thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

namespace sluice::cuda {

// Bytes of shared memory that a block may use without an attribute of its kernel.
inline constexpr uint64_t kDefaultShared = 48 * 1024;

// True if the values at two addresses have equal members; padding bytes may differ.
template <typename T>
bool EqualValues(const void* a, const void* b) {
  return *static_cast<const T*>(a) == *static_cast<const T*>(b);
}

// A launch by its kernel's host function.
struct KernelCall {
  static constexpr size_t kMaxArguments = 8;
  struct Argument {
    void* value = nullptr;
    size_t bytes = 0;
    bool (*equal)(const void* a, const void* b) = nullptr;
  };
  const void* kernel = nullptr;
  dim3 grid;
  dim3 block;
  uint64_t shared = 0;
  const Argument* arguments = nullptr;
  size_t count = 0;
};

// Launches that were kept, with copies of their arguments. Equal lists launch the same kernels with arguments
// whose members are equal (of a zero the sign may be another).
class LaunchList {
 public:
  void Add(const KernelCall& call);
  void Clear();
  bool empty() const { return launches_.empty(); }
  // Launches all of it into the stream, in order, up to the first error.
  cudaError_t Issue(cudaStream_t stream) const;
  bool operator==(const LaunchList& other) const;

 private:
  struct Launch {
    const void* kernel = nullptr;
    uint32_t grid[3] = {};
    uint32_t block[3] = {};
    uint64_t shared = 0;
    size_t first_argument = 0;
    size_t count = 0;  // of arguments
    bool operator==(const Launch& other) const = default;
  };
  struct Argument {
    size_t at = 0;  // in bytes_
    bool (*equal)(const void* a, const void* b) = nullptr;
    bool operator==(const Argument& other) const = default;
  };
  std::vector<Launch> launches_;
  std::vector<Argument> arguments_;
  std::vector<uint8_t> bytes_;  // arguments lie at multiples of 16
};

class Launcher {
 public:
  explicit Launcher(cudaStream_t stream = nullptr) : stream_(stream) {}

  // From here on launches go to the end of `list`; null: into the stream.
  void KeepIn(LaunchList* list) { list_ = list; }

  // Returns CUDA's error of the launch; the error of a kept launch is returned when the list is issued.
  template <typename... Params>
  cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, uint64_t shared,
                     std::type_identity_t<Params>... arguments) {
    static_assert(sizeof...(Params) > 0 && sizeof...(Params) <= KernelCall::kMaxArguments);
    const KernelCall::Argument all[] = {{&arguments, sizeof(arguments), EqualValues<Params>}...};
    return Put({reinterpret_cast<const void*>(kernel), grid, block, shared, all, sizeof...(Params)});
  }

  uint64_t launched() const { return launched_; }

 private:
  cudaError_t Put(const KernelCall& call);

  cudaStream_t stream_;
  LaunchList* list_ = nullptr;
  uint64_t launched_ = 0;
  // Shared memory that kernels were allowed beyond the default. Never less than before: a kept launch may
  // need it.
  std::map<const void*, uint64_t> allowed_;
};

}  // namespace sluice::cuda
