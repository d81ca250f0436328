// Facts about this host for `sluice doctor`, read once. Judged by doctor_checks.h.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::cli {

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
  int io_uring_errno = 0;      // of a ring and a read by it; 0: works
  int pidfd_errno = 0;         // of watching a process
  int seal_errno = 0;          // of sealing shared memory for its readers
  int collapse_errno = 0;      // of making huge pages from shared memory
  std::string thp;             // "always [madvise] never"
};

struct DiskFacts {
  std::string path;
  int direct_errno = 0;       // of an O_DIRECT read of one block; 0: works
  uint32_t memory_align = 0;  // by statx, 0: unknown
  uint32_t offset_align = 0;
};

CpuFacts ReadCpuFacts();
KernelFacts ReadKernelFacts();
// Reads one block of the file.
DiskFacts ReadDiskFacts(const std::string& path);

}  // namespace sluice::cli
