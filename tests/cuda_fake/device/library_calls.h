// Calls of libraries beside CUDA's runtime on the fake device: the fake of cuBLASLt is a shared object
// of its own, as the real one is, and finds the device of its process by an environment variable,
// "PID:ADDRESS".
//
// Thread safety: thread-safe, by the lock of every call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sluice::cuda_fake {

inline constexpr char kLibraryDeviceVariable[] = "SLUICE_FAKE_CUDA_DEVICE";

// Device memory that a call reads or writes: `rows` of `row_bytes`, `stride` bytes apart.
struct LibraryMatrix {
  const void* address = nullptr;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t stride = 0;
  bool written = false;
};

struct LibraryCall {
  std::string name;
  std::vector<LibraryMatrix> matrices;
  // Runs when the call's turn in its stream has come, with the host's addresses of the matrices.
  std::function<void(const std::vector<uint8_t*>&)> run;
};

class LibraryDevice {
 public:
  virtual ~LibraryDevice() = default;
  // Submits a call to a stream; its accesses are checked as those of copies are. cudaErrorInvalidValue, and a
  // report, if a matrix is not wholly device memory.
  virtual cudaError_t Submit(cudaStream_t stream, LibraryCall call) = 0;
  // A finding of the library's own checks.
  virtual void Report(const std::string& text) = 0;
};

// Writes the variable for this process, once.
void ShowDeviceToLibraries();

}  // namespace sluice::cuda_fake
