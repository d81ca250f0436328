// Facts about NVIDIA GPUs for `sluice doctor`, read from this host once: by the driver's library where it is
// there, and by the PCI bus where it is not. Judged by doctor_checks.h.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

struct GpuFact {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  uint64_t memory_bytes = 0;
};

struct GpuFacts {
  int on_the_bus = 0;          // display and 3D controllers of NVIDIA
  bool driver = false;         // its library is there
  std::string driver_error;    // why the library cannot be loaded, where it is not there
  int init_error = 0;          // of the driver's first call; 0: works
  int cuda_version = 0;        // the newest that the driver serves: 13000 for 13.0
  std::vector<GpuFact> found;  // by the driver
};

inline constexpr const char* kCudaDriver = "libcuda.so.1";
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";
GpuFacts ReadGpuFacts(const std::string& library = kCudaDriver, const std::string& bus = kPciDevices);

}  // namespace sluice::cli
