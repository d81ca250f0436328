// The kernels that nvcc's objects have registered, and their PTX made ready to run.
//
// Thread safety: thread-compatible; registration happens in static constructors, before main.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/cuda_fake/device/memory.h"
#include "tests/cuda_fake/interp/decoder.h"

namespace sluice::cuda_fake {

// Records of the static constructors: pointers only, since nothing else may exist yet.
struct RegisteredName {
  const void* binary = nullptr;  // the fat binary's wrapper
  const void* host = nullptr;    // the kernel's stub, or the variable
  const char* name = nullptr;    // in the PTX
};
struct Registry {
  std::vector<RegisteredName> kernels;
  std::vector<RegisteredName> variables;
};
Registry& GlobalRegistry();

// The PTX texts in a fat binary, by the wrapper that __cudaRegisterFatBinary is given. CUDA does not document
// the format; this reads objects made with nvcc -no-compress, and an object without readable PTX is an error
// at its launch.
std::vector<std::string> PtxOf(const void* wrapper);

// A device's modules.
class Modules {
 public:
  Modules(int capability, DeviceMemory* memory) : capability_(capability), memory_(memory) {}

  // The kernel of a stub. NOT_FOUND if no object has registered it or has PTX that the device can run;
  // UNIMPLEMENTED naming line and opcode for what the interpreter does not know.
  absl::StatusOr<const Program*> Kernel(const void* stub);
  // The device address of a __device__ or __constant__ variable.
  absl::StatusOr<uint64_t> Variable(const void* host);

 private:
  struct Loaded {
    const Module* module = nullptr;
    SymbolAddresses symbols;
  };
  absl::StatusOr<const Loaded*> Load(const void* binary);

  int capability_;
  DeviceMemory* memory_;
  std::map<const void*, Loaded> loaded_;     // by wrapper
  std::map<const void*, Program> programs_;  // by stub
};

}  // namespace sluice::cuda_fake
