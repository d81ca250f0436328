// `sluice doctor`: facts about this host, including its GPUs, and the findings that follow from them.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/json.h"
#include "common/base/machine_facts.h"

namespace sluice::cli {

// Facts about NVIDIA GPUs, from the driver's library if it is installed, else from the PCI bus.
struct GpuFact {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  uint64_t memory_bytes = 0;
};

struct GpuFacts {
  int on_the_bus = 0;          // NVIDIA's display and 3D controllers on the PCI bus
  bool driver = false;         // the driver's library is installed
  std::string driver_error;    // reason why the library cannot be loaded; empty if it was
  int init_error = 0;          // result of the driver's first call; 0: success
  int cuda_version = 0;        // newest CUDA version that the driver supports: 13000 for 13.0
  std::vector<GpuFact> found;  // GPUs that the driver reports
};

inline constexpr const char* kCudaDriver = "libcuda.so.1";
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";
GpuFacts ReadGpuFacts(const std::string& library = kCudaDriver, const std::string& bus = kPciDevices);

// Facts about this host for `sluice doctor`, read once.
//
// Thread safety: free functions, safe to call from any thread.

struct CpuFacts {
  bool avx2 = false;
  bool fma = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amx_bf16 = false;
  int cpus = 0;  // in the affinity mask
};

struct KernelFacts {
  uint64_t memlock_bytes = 0;  // soft limit, UINT64_MAX: none
  uint64_t open_files = 0;     // soft limit
  int io_uring_errno = 0;      // errno of setting up a ring and reading with it; 0: works
  int pidfd_errno = 0;         // errno of watching a process; 0: works
  int seal_errno = 0;          // errno of sealing shared memory for its readers; 0: works
  int collapse_errno = 0;      // errno of making huge pages from shared memory; 0: works
  std::string thp;             // "always [madvise] never"
};

struct DiskFacts {
  std::string path;
  int direct_errno = 0;       // errno of an O_DIRECT read of one block; 0: works
  uint32_t memory_align = 0;  // required memory alignment, from statx; 0: unknown
  uint32_t offset_align = 0;
};

CpuFacts ReadCpuFacts();
KernelFacts ReadKernelFacts();
// Reads one block of the file.
DiskFacts ReadDiskFacts(const std::string& path);

// Checks of `sluice doctor`: facts in, findings out.
//
// Thread safety: plain values and pure functions.

enum class Verdict { kPass, kWarn, kFail };

struct Finding {
  std::string check;  // stable identifier
  Verdict verdict = Verdict::kPass;
  std::string message;
  std::string fix;  // empty with kPass
};

Finding CheckCpu(const CpuFacts& cpu);
// Checks the CPUs that this process may use. An error in `topology` is the reason why they are unknown.
Finding CheckNodes(const absl::StatusOr<CpuTopology>& topology);
// `budget`: requested DRAM budget; absent: the default. `pack_bytes` 0: no pack was named.
Finding CheckMemory(const MemoryFacts& memory, std::optional<uint64_t> budget, uint64_t pack_bytes);
Finding CheckMemlock(const KernelFacts& kernel);
Finding CheckOpenFiles(const KernelFacts& kernel);
Finding CheckIoUring(const KernelFacts& kernel);
Finding CheckPidfd(const KernelFacts& kernel);
Finding CheckSeals(const KernelFacts& kernel);
Finding CheckHugePages(const KernelFacts& kernel);
// A host without a GPU passes: only device cuda needs one.
Finding CheckGpu(const GpuFacts& gpus);
Finding CheckDirectReads(const DiskFacts& disk);
// `status`: result of opening the pack and verifying a sample of it.
Finding CheckPackSample(const std::string& pack, const absl::Status& status, uint64_t extents,
                        uint64_t bytes);
Finding CheckRuntimeDir(const absl::Status& status, const std::string& dir);
Finding CheckProgram(const std::string& path, bool executable);
// Checks inferd's socket: `status` is OK, NOT_FOUND (no server, which is fine), or an error.
Finding CheckServer(const std::string& socket, const absl::Status& status);

bool AnyFailure(const std::vector<Finding>& findings);
Json FindingsJson(const std::vector<Finding>& findings);
// Returns one line per finding, "PASS  check  message", and an indented line for each fix; styled on a
// terminal.
std::string FindingsText(const std::vector<Finding>& findings, bool terminal);

}  // namespace sluice::cli
