#include "cli/doctor/host_facts.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cli/launch/unix_socket.h"
#include "common/cpu/cpu_topology.h"
#include "common/ring/unique_fd.h"
#include "weightd/io/read_ring.h"

namespace sluice::cli {
namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kBlock = 4096;
constexpr int kMadvCollapse = 25;             // <bits/mman-linux.h> of Debian 12 has no name for it yet
constexpr int kSealFutureWrite = 0x0010;      // F_SEAL_FUTURE_WRITE
constexpr unsigned kStatxDioAlign = 0x2000u;  // STATX_DIOALIGN

// struct statx of kernel 6.1, whose last used words glibc 2.36 does not name.
struct StatxDio {
  uint8_t before[144];
  uint64_t mnt_id;
  uint32_t dio_mem_align;
  uint32_t dio_offset_align;
  uint8_t after[96];
};
static_assert(sizeof(StatxDio) == 256);

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int ProbePidfd() {
  const UniqueFd fd = OpenPidfd(getpid());
  return fd.valid() ? 0 : errno;
}

// Seals and huge pages of a memory file, the way weightd's arena uses them. A huge page must lie at a
// multiple of its size both in the file and in memory.
void ProbeSharedMemory(KernelFacts* facts) {
  const UniqueFd fd(memfd_create("sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* const room = mmap(nullptr, 2 * kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!fd.valid() || ftruncate(fd.get(), kHugePage) != 0 || room == MAP_FAILED) {
    facts->seal_errno = facts->collapse_errno = errno;
    return;
  }
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(room) + kHugePage - 1) & ~(kHugePage - 1);
  void* const page = mmap(reinterpret_cast<void*>(aligned), kHugePage, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, fd.get(), 0);
  if (page == MAP_FAILED) {
    facts->seal_errno = facts->collapse_errno = errno;
  } else {
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | kSealFutureWrite;
    facts->seal_errno = fcntl(fd.get(), F_ADD_SEALS, seals) == 0 ? 0 : errno;
    std::memset(page, 1, kHugePage);
    facts->collapse_errno = madvise(page, kHugePage, kMadvCollapse) == 0 ? 0 : errno;
  }
  munmap(room, 2 * kHugePage);
}

uint64_t SoftLimit(decltype(RLIMIT_MEMLOCK) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace

CpuFacts ReadCpuFacts() {
  __builtin_cpu_init();
  CpuFacts facts;
  facts.avx2 = __builtin_cpu_supports("avx2");
  facts.fma = __builtin_cpu_supports("fma");
  facts.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  facts.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  facts.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  // The compilers' names for AMX differ; the kernel's do not.
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line) && !facts.amx_bf16;) {
    facts.amx_bf16 = line.rfind("flags", 0) == 0 && line.find("amx_bf16") != std::string::npos;
  }
  facts.cpus = static_cast<int>(AllowedCpus().size());
  return facts;
}

KernelFacts ReadKernelFacts() {
  KernelFacts facts;
  facts.memlock_bytes = SoftLimit(RLIMIT_MEMLOCK);
  facts.open_files = SoftLimit(RLIMIT_NOFILE);
  facts.io_uring_errno = weightd::TryReadRing();
  facts.pidfd_errno = ProbePidfd();
  ProbeSharedMemory(&facts);
  facts.thp = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  return facts;
}

DiskFacts ReadDiskFacts(const std::string& path) {
  DiskFacts facts;
  facts.path = path;
  StatxDio info{};
  if (syscall(SYS_statx, AT_FDCWD, path.c_str(), 0, kStatxDioAlign, &info) == 0) {
    facts.memory_align = info.dio_mem_align;
    facts.offset_align = info.dio_offset_align;
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd.valid()) {
    facts.direct_errno = errno;
    return facts;
  }
  void* const block = std::aligned_alloc(kBlock, kBlock);
  if (pread(fd.get(), block, kBlock, 0) < 0) {
    facts.direct_errno = errno;
  }
  std::free(block);
  return facts;
}

}  // namespace sluice::cli
