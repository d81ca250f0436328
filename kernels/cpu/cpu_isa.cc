// Chooses the instruction set once, at creation.

#include "kernels/cpu/cpu_isa.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/status.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxThreads = 1024;

// Sanitized builds lack the instruction sets that the building machine lacks (kernels/CMakeLists.txt).
#ifdef SLUICE_WITHOUT_AVX2VNNI
constexpr bool kBuiltAvx2Vnni = false;
#else
constexpr bool kBuiltAvx2Vnni = true;
#endif
#ifdef SLUICE_WITHOUT_AVX512
constexpr bool kBuiltAvx512 = false;
#else
constexpr bool kBuiltAvx512 = true;
#endif
#ifdef SLUICE_WITHOUT_AMX
constexpr bool kBuiltAmx = false;
#else
constexpr bool kBuiltAmx = true;
#endif

bool CpuHasF16c() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Names the missing features of AVX2, FMA, F16C; empty: none. (The AVX2 test covers the system's support.)
std::string MissingForAvx2() {
  std::string missing;
  const auto need = [&missing](bool has, const char* name) {
    if (!has) {
      missing += missing.empty() ? name : std::string(", ") + name;
    }
  };
  need(__builtin_cpu_supports("avx2") != 0, "AVX2");
  need(__builtin_cpu_supports("fma") != 0, "FMA");
  need(CpuHasF16c(), "F16C");
  return missing;
}

bool HasAvx512() {
  return kBuiltAvx512 && MissingForAvx2().empty() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
}

bool HasAvx2Vnni() {
  constexpr uint32_t kAvxVnni = 1u << 4;  // bit of EAX in leaf 7.1
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  return kBuiltAvx2Vnni && MissingForAvx2().empty() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a & kAvxVnni) != 0;
}

// True if the CPU has the tiles and their byte products, and the system permits them: it grants the state of
// a thread's tiles, 8 KiB, only on request.
bool RequestAmx() {
  constexpr uint32_t kTileAndInt8 = 3u << 24;  // bits of EDX in leaf 7
  constexpr uint32_t kTileState = 3u << 17;    // bits of XCR0: configuration and data
  constexpr int kRequestPermission = 0x1023;   // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;                // number of the state
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (!HasAvx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTileAndInt8) != kTileAndInt8) {
    return false;
  }
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Asks once per process: later threads inherit the permission.
bool HasAmx() {
  static const bool has = kBuiltAmx && RequestAmx();
  return has;
}

// Tables beside AVX2's; nullptr: this CPU or this build lacks the instruction set.
const cpu::KernelTable* Avx2VnniTable() {
  if constexpr (kBuiltAvx2Vnni) {
    return HasAvx2Vnni() ? &cpu::Avx2VnniKernels() : nullptr;
  }
  return nullptr;
}
const cpu::KernelTable* Avx512Table() {
  if constexpr (kBuiltAvx512) {
    return HasAvx512() ? &cpu::Avx512Kernels() : nullptr;
  }
  return nullptr;
}
const cpu::KernelTable* AmxTable() {
  if constexpr (kBuiltAmx) {
    return HasAmx() ? &cpu::AmxKernels() : nullptr;
  }
  return nullptr;
}

// The best kernels for this CPU, which has AVX2.
const cpu::KernelTable* BestTable() {
  for (const auto table : {AmxTable, Avx512Table, Avx2VnniTable}) {
    if (const cpu::KernelTable* const found = table(); found != nullptr) {
      return found;
    }
  }
  return &cpu::Avx2Kernels();
}

uint32_t AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return 1;
  }
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

namespace cpu {

absl::StatusOr<const KernelTable*> ChooseKernels(CpuIsa isa) {
  if (const std::string missing = MissingForAvx2(); !missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("device host needs an x86-64 CPU with AVX2, FMA and F16C; this one lacks ", missing));
  }
  const KernelTable* table = nullptr;
  switch (isa) {
    case CpuIsa::kAvx2:
      return &Avx2Kernels();
    case CpuIsa::kAvx2Vnni:
      table = Avx2VnniTable();
      break;
    case CpuIsa::kAvx512:
      table = Avx512Table();
      break;
    case CpuIsa::kBest:
      return BestTable();
  }
  if (table == nullptr) {
    return absl::FailedPreconditionError(isa == CpuIsa::kAvx512
                                             ? "this CPU or system has no AVX-512 (F, BW, DQ, VL, VNNI)"
                                             : "this CPU has no AVX-VNNI");
  }
  return table;
}

absl::StatusOr<uint32_t> ChooseThreads(uint32_t threads) {
  if (threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(threads, " threads; the most are ", kMaxThreads));
  }
  return threads == 0 ? AffinityCpus() : threads;
}

// Granite Rapids keeps fetched lines for a sixteenth of its second-level cache (2 MiB) and reads two streams
// a tenth faster than one. Zen 4 (1 MiB) keeps more of them and reads one stream as fast as two.
MemoryTuning TuningOfThisCpu() {
  constexpr long kUnknown = 1 << 20;  // typical for servers
  const long reported = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const long cache = reported > 0 ? reported : kUnknown;
  const bool amd = __builtin_cpu_is("amd") != 0;
  MemoryTuning out;
  out.fetch_distance =
      static_cast<uint32_t>(std::clamp(amd ? cache / 16 * 3 : cache / 16, 64l << 10, 256l << 10));
  out.two_streams = !amd;
  return out;
}

}  // namespace cpu

bool CpuIsaSupported(CpuIsa isa) {
  return isa == CpuIsa::kAvx512     ? HasAvx512()
         : isa == CpuIsa::kAvx2Vnni ? HasAvx2Vnni()
                                    : MissingForAvx2().empty();
}

}  // namespace sluice
