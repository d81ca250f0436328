// The judgements of `sluice doctor`: facts in, findings out.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/doctor/gpu_facts.h"
#include "cli/doctor/host_facts.h"
#include "cli/ui/json.h"
#include "common/cpu/cpu_topology.h"
#include "common/memory_facts.h"

namespace sluice::cli {

enum class Verdict { kPass, kWarn, kFail };

struct Finding {
  std::string check;  // a stable word
  Verdict verdict = Verdict::kPass;
  std::string message;
  std::string fix;  // empty with kPass
};

Finding CheckCpu(const CpuFacts& cpu);
// Checks the CPUs that this process may use; `topology` may be the reason why they are unknown.
Finding CheckNodes(const absl::StatusOr<CpuTopology>& topology);
// `budget`: what --dram-budget asks for; absent: the default. `pack_bytes` 0: no pack was named.
Finding CheckMemory(const MemoryFacts& memory, std::optional<uint64_t> budget, uint64_t pack_bytes);
Finding CheckMemlock(const KernelFacts& kernel);
Finding CheckOpenFiles(const KernelFacts& kernel);
Finding CheckIoUring(const KernelFacts& kernel);
Finding CheckPidfd(const KernelFacts& kernel);
Finding CheckSeals(const KernelFacts& kernel);
Finding CheckHugePages(const KernelFacts& kernel);
// A host without a GPU is as good as any: device cuda is the only one that wants one.
Finding CheckGpu(const GpuFacts& gpus);
Finding CheckDirectReads(const DiskFacts& disk);
// `status` of opening the pack and of verifying a sample of it.
Finding CheckPackSample(const std::string& pack, const absl::Status& status, uint64_t extents,
                        uint64_t bytes);
Finding CheckRuntimeDir(const absl::Status& status, const std::string& dir);
Finding CheckProgram(const std::string& path, bool executable);
// Checks inferd's socket: `status` is OK, NotFound (no server, which is fine), or an error.
Finding CheckServer(const std::string& socket, const absl::Status& status);

bool AnyFailure(const std::vector<Finding>& findings);
Json FindingsJson(const std::vector<Finding>& findings);
// One line per finding, "PASS  check  message", and an indented one for each fix; styled on a terminal.
std::string FindingsText(const std::vector<Finding>& findings, bool terminal);

}  // namespace sluice::cli
