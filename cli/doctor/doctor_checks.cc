#include "cli/doctor/doctor_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/ui/terminal.h"
#include "common/size.h"

namespace sluice::cli {
namespace {

// Below this io_uring's registered buffers and pinned pages do not fit beside anything else of the user.
constexpr uint64_t kUsefulMemlock = 64ull << 20;
// Connections, segments and packs of one daemon.
constexpr uint64_t kUsefulOpenFiles = 1024;
// weightd's alignment of extents: a disk that needs more cannot be read directly.
constexpr uint32_t kExtentAlignment = 4096;
// Oldest target of device cuda's kernels: compute capability 7.5 and up, by a CUDA whose PTX older
// drivers refuse.
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
