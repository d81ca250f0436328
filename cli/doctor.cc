#include "cli/doctor.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/supervisor.h"
#include "cli/terminal.h"
#include "common/base/machine_facts.h"
#include "common/base/size.h"
#include "common/base/unique_fd.h"
#include "weightd/store/uring_reader.h"

namespace sluice::cli {
namespace {

constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kDisplayClass = 0x03;  // class byte of a PCI class code

unsigned HexIn(const std::filesystem::path& file) {
  std::ifstream stream(file);
  unsigned value = 0;
  stream >> std::hex >> value;
  return stream.fail() ? 0 : value;
}

int CountOnTheBus(const std::string& bus) {
  int count = 0;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(bus, error)) {
    const bool display = HexIn(device.path() / "class") >> 16 == kDisplayClass;
    count += display && HexIn(device.path() / "vendor") == kNvidia ? 1 : 0;
  }
  return count;
}

// Functions of CUDA's driver API that doctor calls; this program is built without its headers.
struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*get)(int*, int);
  int (*name)(char*, int, int);
  int (*attribute)(int*, int, int);
  int (*memory)(size_t*, int);
};
// Values of CUdevice_attribute.
constexpr int kMajor = 75;
constexpr int kMinor = 76;

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

void AskDriver(void* library, GpuFacts* facts) {
  Driver d{};
  if (!Find(library, "cuInit", &d.init) || !Find(library, "cuDriverGetVersion", &d.version) ||
      !Find(library, "cuDeviceGetCount", &d.count) || !Find(library, "cuDeviceGet", &d.get) ||
      !Find(library, "cuDeviceGetName", &d.name) || !Find(library, "cuDeviceGetAttribute", &d.attribute) ||
      !Find(library, "cuDeviceTotalMem_v2", &d.memory)) {
    facts->driver = false;
    facts->driver_error = "the library has not the functions of CUDA's driver";
    return;
  }
  d.version(&facts->cuda_version);
  facts->init_error = d.init(0);
  int count = 0;
  if (facts->init_error != 0 || d.count(&count) != 0) {
    return;
  }
  for (int i = 0; i < count; ++i) {
    GpuFact gpu;
    int device = 0;
    char name[256] = {};
    size_t bytes = 0;
    if (d.get(&device, i) == 0 && d.name(name, sizeof(name) - 1, device) == 0 &&
        d.attribute(&gpu.major, kMajor, device) == 0 && d.attribute(&gpu.minor, kMinor, device) == 0 &&
        d.memory(&bytes, device) == 0) {
      gpu.name = name;
      gpu.memory_bytes = bytes;
      facts->found.push_back(gpu);
    }
  }
}

}  // namespace

GpuFacts ReadGpuFacts(const std::string& library, const std::string& bus) {
  GpuFacts facts;
  facts.on_the_bus = CountOnTheBus(bus);
  // Never closed: once called, the driver's library has threads of its own.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  facts.driver = handle != nullptr;
  if (facts.driver) {
    AskDriver(handle, &facts);
  } else if (const char* const error = dlerror(); error != nullptr) {
    facts.driver_error = error;
  }
  return facts;
}

namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kBlock = 4096;
constexpr int kMadvCollapse = 25;             // missing in Debian 12's <bits/mman-linux.h>
constexpr int kSealFutureWrite = 0x0010;      // F_SEAL_FUTURE_WRITE
constexpr unsigned kStatxDioAlign = 0x2000u;  // STATX_DIOALIGN

// struct statx as of kernel 6.1; glibc 2.36 does not name its last fields.
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

// Probes seals and huge pages of a memory file as weightd's arena uses them. A huge page must be aligned to
// its size both in the file and in memory.
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
  // Read from /proc/cpuinfo, since compilers differ in their names for AMX.
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

namespace {

// With less, io_uring's registered buffers and pinned pages leave nothing for the user's other programs.
constexpr uint64_t kUsefulMemlock = 64ull << 20;
// Minimum for the connections, segments and packs of one daemon.
constexpr uint64_t kUsefulOpenFiles = 1024;
// weightd's alignment of extents: a disk that requires a larger one cannot be read with O_DIRECT.
constexpr uint32_t kExtentAlignment = 4096;
// Oldest compute capability (7.5) and CUDA version for device cuda: older drivers refuse its kernels' PTX.
constexpr int kOldestGpu = 75;
constexpr int kOldestCuda = 13000;

Finding Pass(const char* check, std::string message) {
  return {check, Verdict::kPass, std::move(message), ""};
}
Finding Warn(const char* check, std::string message, std::string fix) {
  return {check, Verdict::kWarn, std::move(message), std::move(fix)};
}
Finding Fail(const char* check, std::string message, std::string fix) {
  return {check, Verdict::kFail, std::move(message), std::move(fix)};
}

std::string ErrnoText(int number) { return absl::StrCat(std::strerror(number), " (errno ", number, ")"); }

const char* VerdictWord(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "PASS";
    case Verdict::kWarn:
      return "WARN";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

Style VerdictStyle(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return Style::kGreen;
    case Verdict::kWarn:
      return Style::kYellow;
    case Verdict::kFail:
      return Style::kRed;
  }
  return Style::kDim;
}

}  // namespace

Finding CheckCpu(const CpuFacts& cpu) {
  if (!cpu.avx2 || !cpu.fma) {
    return Fail("cpu", "this CPU has no AVX2 with FMA",
                "run on an x86-64 CPU of 2013 or later (Haswell, Zen)");
  }
  std::string message = absl::StrCat(cpu.cpus, " CPUs with AVX2");
  absl::StrAppend(&message, cpu.avx512 ? ", AVX-512" : "", cpu.avx512_vnni ? ", VNNI" : "",
                  cpu.avx512_bf16 ? ", AVX512-BF16" : "", cpu.amx_bf16 ? ", AMX" : "");
  return Pass("cpu", message);
}

Finding CheckNodes(const absl::StatusOr<CpuTopology>& topology) {
  if (!topology.ok()) {
    return Warn("nodes", std::string(topology.status().message()),
                "threads are not pinned and weights not spread over memory nodes until this can be read");
  }
  const std::string message = DescribeTopology(*topology);
  const auto& nodes = topology->nodes;
  const auto count = [&nodes](auto what) { return std::count_if(nodes.begin(), nodes.end(), what); };
  const auto idle = count([](const CpuNode& node) { return node.cpus.empty(); });
  const auto bare = count([](const CpuNode& node) { return node.memory_bytes == 0; });
  if (nodes.size() > 1 && idle > 0) {
    return Warn("nodes", absl::StrCat(message, "; of ", idle, " of them no CPU may be used"),
                "let inferd use CPUs of all nodes (taskset, CPUAffinity=, the cgroup's cpuset), or keep "
                "weights on those it uses (cpuset.mems)");
  }
  if (nodes.size() > 1 && bare > 0) {
    return Warn("nodes", absl::StrCat(message, "; ", bare, " of them have no memory"),
                "fill the memory slots of every node: each brings bandwidth of its own");
  }
  return Pass("nodes", nodes.size() == 1 ? message : absl::StrCat(message, "; weights are interleaved"));
}

Finding CheckMemory(const MemoryFacts& memory, std::optional<uint64_t> budget, uint64_t pack_bytes) {
  const uint64_t free = UsableMemory(memory);
  std::string limit =
      absl::StrCat(FormatSize(memory.available), " of ", FormatSize(memory.total), " available");
  if (memory.cgroup_limit != kNoMemoryLimit) {
    const uint64_t left = memory.cgroup_limit - std::min(memory.cgroup_limit, memory.cgroup_used);
    absl::StrAppend(&limit, ", ", FormatSize(left), " left of the cgroup's ",
                    FormatSize(memory.cgroup_limit));
  }
  if (budget.has_value() && *budget > free) {
    return Fail("memory", absl::StrCat("--dram-budget ", FormatSize(*budget), ", but ", limit),
                "lower --dram-budget, end other programs, or raise the cgroup's memory.max");
  }
  if (pack_bytes > 0 && pack_bytes > free / 10 * 7) {
    return Warn("memory",
                absl::StrCat(limit, "; the pack's ", FormatSize(pack_bytes),
                             " do not fit: experts will be read from the disk as they are needed"),
                "more memory, or fewer bits per weight (`sluice pack --bits q8`)");
  }
  return Pass("memory", limit);
}

Finding CheckMemlock(const KernelFacts& kernel) {
  if (kernel.memlock_bytes == UINT64_MAX) {
    return Pass("memlock", "unlimited");
  }
  const std::string message =
      absl::StrCat("the limit of locked memory is ", FormatSize(kernel.memlock_bytes));
  if (kernel.memlock_bytes < kUsefulMemlock) {
    return Warn("memlock", message,
                "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited` (limits.conf: memlock)");
  }
  return Pass("memlock", message);
}

Finding CheckOpenFiles(const KernelFacts& kernel) {
  const std::string message = absl::StrCat("at most ", kernel.open_files, " open files");
  if (kernel.open_files < kUsefulOpenFiles) {
    return Warn("open_files", message, "LimitNOFILE=65536 in the unit, or `ulimit -n 65536`");
  }
  return Pass("open_files", message);
}

Finding CheckIoUring(const KernelFacts& kernel) {
  switch (kernel.io_uring_errno) {
    case 0:
      return Pass("io_uring", "weights are read by rings (--io uring)");
    case EPERM:
    case EACCES:
      return Warn("io_uring", absl::StrCat("refused: ", ErrnoText(kernel.io_uring_errno)),
                  "sysctl kernel.io_uring_disabled=0; in a container, a seccomp profile that allows "
                  "io_uring_setup. Until then weights are read by threads (--io pread)");
    case ENOSYS:
      return Warn("io_uring", "this kernel or sandbox has none",
                  "a kernel from 5.6 on, no gVisor. Until then weights are read by threads (--io pread)");
    default:
      return Warn("io_uring", absl::StrCat("fails: ", ErrnoText(kernel.io_uring_errno)),
                  "ENOMEM: raise the memlock limit. Until then weights are read by threads (--io pread)");
  }
}

Finding CheckPidfd(const KernelFacts& kernel) {
  if (kernel.pidfd_errno != 0) {
    return Fail("pidfd", absl::StrCat("processes cannot be watched: ", ErrnoText(kernel.pidfd_errno)),
                "a kernel from 5.3 on whose sandbox allows pidfd_open");
  }
  return Pass("pidfd", "processes can be watched");
}

Finding CheckSeals(const KernelFacts& kernel) {
  if (kernel.seal_errno != 0) {
    return Fail("seals", absl::StrCat("shared memory cannot be sealed: ", ErrnoText(kernel.seal_errno)),
                "a kernel from 5.1 on whose sandbox allows memfd_create and F_SEAL_FUTURE_WRITE");
  }
  return Pass("seals", "shared memory can be made read-only for its readers");
}

Finding CheckHugePages(const KernelFacts& kernel) {
  if (kernel.collapse_errno != 0) {
    return Warn(
        "huge_pages",
        absl::StrCat("weights stay in 4 KiB pages: MADV_COLLAPSE fails: ", ErrnoText(kernel.collapse_errno),
                     "; transparent_hugepage is '", kernel.thp, "'"),
        "a kernel from 6.1 on, and `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`");
  }
  return Pass("huge_pages", "weights can lie in 2 MiB pages");
}

Finding CheckGpu(const GpuFacts& gpus) {
  const auto version = [](int of) { return absl::StrCat(of / 1000, ".", of % 1000 / 10); };
  if (!gpus.driver) {
    return gpus.on_the_bus == 0
               ? Pass("gpu", "no NVIDIA GPU: devices host and sim")
               : Warn("gpu",
                      absl::StrCat(gpus.on_the_bus,
                                   " NVIDIA GPUs on the bus, and no driver for them: ", gpus.driver_error),
                      "Debian: apt-get install nvidia-driver, and start the system anew; in a container, "
                      "give it the GPU and the driver's libraries");
  }
  if (gpus.init_error != 0 || gpus.found.empty()) {
    return Warn(
        "gpu",
        gpus.init_error != 0 ? absl::StrCat("the NVIDIA driver fails: CUDA error ", gpus.init_error)
                             : absl::StrCat("the NVIDIA driver lists no GPU, the bus ", gpus.on_the_bus),
        "`nvidia-smi` says more; 803: library and kernel module are of two versions, start the system "
        "anew; in a container, give it the GPU's /dev/nvidia*");
  }
  std::string list;
  bool old = true;
  for (const GpuFact& gpu : gpus.found) {
    absl::StrAppend(&list, list.empty() ? "" : "; ", gpu.name, ", compute capability ", gpu.major, ".",
                    gpu.minor, ", ", FormatSize(gpu.memory_bytes));
    old = old && gpu.major * 10 + gpu.minor < kOldestGpu;
  }
  if (old) {
    return Warn("gpu", absl::StrCat(list, ": compute capability 7.5 is the oldest that device cuda knows"),
                "a GPU of 2018 or later (Turing); until then devices host and sim");
  }
  if (gpus.cuda_version < kOldestCuda) {
    return Warn("gpu",
                absl::StrCat(list, "; the driver serves CUDA ", version(gpus.cuda_version), ", kernels want ",
                             version(kOldestCuda)),
                "a newer driver: https://www.nvidia.com/drivers, or Debian's backports");
  }
  return Pass("gpu", absl::StrCat(list, "; the driver serves CUDA ", version(gpus.cuda_version)));
}

Finding CheckDirectReads(const DiskFacts& disk) {
  if (disk.direct_errno != 0) {
    return Warn("direct_reads",
                absl::StrCat(disk.path, ": O_DIRECT fails: ", ErrnoText(disk.direct_errno),
                             "; reads go through the page cache"),
                "put the pack on ext4, xfs or btrfs on a local disk");
  }
  if (disk.offset_align > kExtentAlignment || disk.memory_align > kExtentAlignment) {
    return Warn("direct_reads",
                absl::StrFormat("%s: O_DIRECT needs blocks of %d bytes, extents have %d", disk.path,
                                std::max(disk.offset_align, disk.memory_align), kExtentAlignment),
                "put the pack on a disk with blocks of at most 4 KiB, or use --direct off");
  }
  return Pass("direct_reads",
              disk.offset_align == 0
                  ? absl::StrCat(disk.path, ": O_DIRECT works (alignment not told)")
                  : absl::StrFormat("%s: O_DIRECT works, aligned to %d in memory and %d in the file",
                                    disk.path, disk.memory_align, disk.offset_align));
}

Finding CheckPackSample(const std::string& pack, const absl::Status& status, uint64_t extents,
                        uint64_t bytes) {
  if (!status.ok()) {
    return Fail("pack", absl::StrCat(pack, ": ", std::string(status.message())),
                "pack the model again; `sluice verify` checks every byte");
  }
  return Pass("pack", absl::StrCat(pack, ": ", extents, " extents drawn at random are whole (",
                                   FormatSize(bytes), "); `sluice verify` checks every byte"));
}

Finding CheckRuntimeDir(const absl::Status& status, const std::string& dir) {
  if (!status.ok()) {
    return Fail("runtime_dir", std::string(status.message()),
                "set SLUICE_RUNTIME_DIR to a short path that only you may write to");
  }
  return Pass("runtime_dir", absl::StrCat("sockets and logs go to ", dir));
}

Finding CheckProgram(const std::string& path, bool executable) {
  if (!executable) {
    return Fail("programs", absl::StrCat(path, " is not there or cannot be run"),
                "build or install the daemons beside `sluice`");
  }
  return Pass("programs", path);
}

Finding CheckServer(const std::string& socket, const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    return Pass("server", absl::StrCat("nothing runs at ", socket, "; commands start what they need"));
  }
  if (!status.ok()) {
    return Warn("server", absl::StrCat(socket, ": ", std::string(status.message())),
                "look into the logs beside it, end the processes, and try again");
  }
  return Pass("server", absl::StrCat("inferd serves at ", socket));
}

bool AnyFailure(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kFail; });
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json checks = Json::Array();
  for (const Finding& finding : findings) {
    checks.Append(Json::Object()
                      .Set("check", finding.check)
                      .Set("verdict", VerdictWord(finding.verdict))
                      .Set("message", finding.message)
                      .Set("fix", finding.fix));
  }
  return Json::Object().Set("ok", !AnyFailure(findings)).Set("checks", std::move(checks));
}

std::string FindingsText(const std::vector<Finding>& findings, bool terminal) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, Styled(VerdictWord(finding.verdict), VerdictStyle(finding.verdict), terminal),
                    "  ", finding.check, std::string(14 - std::min<size_t>(13, finding.check.size()), ' '),
                    finding.message, "\n");
    if (!finding.fix.empty()) {
      absl::StrAppend(&text, "      fix: ", finding.fix, "\n");
    }
  }
  return text;
}

}  // namespace sluice::cli
