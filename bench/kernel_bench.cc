// Share of the read bandwidth that the host backend's kernels reach, by instruction set, shape and encoding,
// measured in one run over one mapping.
//
// Kinds, all for one token (decode) except the last:
//   rows     MatMul over matrices of 16 MiB with rows of `hidden` values
//   down     weighted sums of blocks of 64 neurons, whose rows are fetched one block ahead
//   expert   MoeExperts: all chosen experts of a layer, in an order that jumps
//   prefill  MatMul and MoeExperts over many tokens: multiply-adds per second, also relative to bf16
// Shapes: mixtral (Mixtral 8x7B: hidden 4096, width 14336, 2 experts), qwen3 (Qwen3-30B-A3B: 2048, 768, 8).
//
// Bytes are whole cache lines touched, scales and padding included. Before and after every pass the baseline
// (read_bandwidth.h) is measured over as many bytes with as many threads. The share is relative to the better
// of the two; its median and minimum over the rounds are printed, so that other load on the machine affects
// both sides alike. Passes walk through the whole mapping, so nothing stays in a cache. Cycles per byte count
// all threads together (two threads at 0.1 and a baseline of 0.05 each take the same time); "cached" is one
// thread over rows in the second-level cache, the cost of the instructions alone.
//
// kernel_bench [--size BYTES] [--pass BYTES] [--threads N] [--rounds N] [--isa best|avx2|avx2vnni|avx512|all]
//              [--shape mixtral|qwen3|all] [--encoding NAME[,NAME...]|all] [--kind NAME[,NAME...]|all]
//              [--small-pages]
// Short by default (a mapping of 1 GiB, about a minute). The full run: --size 6442450944 --rounds 9
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/kernel_workloads.h"
#include "bench/results.h"

namespace sluice {
namespace {

struct Options {
  bench::KernelBenchOptions run;
  std::vector<CpuIsa> isas;
  std::string shapes = "all";
  std::string encodings = "all";
  std::string kinds = "all";
  uint32_t rounds = 3;
  bool small_pages = false;
};

bool Chosen(const std::string& list, const std::string& name) {
  for (const absl::string_view item : absl::StrSplit(list, ',')) {
    if (item == "all" || item == name) {
      return true;
    }
  }
  return false;
}

// Returns a mapping full of values that are small and finite as bf16, as f16 and as codes.
std::byte* MakeWeights(const Options& options) {
  const uint64_t size = options.run.size;
  void* memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    bench::Check(absl::ResourceExhaustedError("no memory for the weights; try --size"));
  }
  madvise(memory, size, options.small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  std::vector<uint16_t> pattern(1 << 19);
  uint32_t state = 1;
  for (uint16_t& value : pattern) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>(0x3c00u | ((state >> 16) & 0x80ffu));
  }
  const uint64_t step = pattern.size() * 2;
  for (uint64_t at = 0; at < size; at += step) {
    std::memcpy(static_cast<std::byte*>(memory) + at, pattern.data(), std::min(step, size - at));
  }
  return static_cast<std::byte*>(memory);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One line of the table.
struct Line {
  bench::KernelWorkload workload;
  std::vector<double> speeds;  // bytes per second
  std::vector<double> bases;
  std::vector<double> shares;
};

void PrintLines(const std::vector<Line>& lines, const std::string& isa, double hertz, uint32_t threads,
                bench::Results* results) {
  std::printf("\n%-8s %-8s %-6s %9s %9s %8s %8s %8s %8s %8s\n", "shape", "encoding", "kind", "GB/s", "base",
              "share", "lowest", "c/B", "base c/B", "cached");
  for (const Line& line : lines) {
    const double speed = Median(line.speeds);
    const double base = Median(line.bases);
    std::printf("%-8s %-8s %-6s %9.2f %9.2f %7.1f%% %7.1f%% %8.3f %8.3f", line.workload.shape.c_str(),
                line.workload.encoding.c_str(), line.workload.kind.c_str(), speed / 1e9, base / 1e9,
                100 * Median(line.shares), 100 * *std::min_element(line.shares.begin(), line.shares.end()),
                hertz * threads / speed, hertz * threads / base);
    results->Add(
        absl::StrCat(isa, " ", line.workload.shape, " ", line.workload.encoding, " ", line.workload.kind),
        100 * Median(line.shares), "% of the read bandwidth");
    const double cached = line.workload.cached ? line.workload.cached() : 0;
    cached > 0 ? std::printf(" %8.3f\n", hertz / cached) : std::printf(" %8s\n", "");
  }
}

constexpr std::pair<const char*, CpuIsa> kIsas[] = {{"avx2", CpuIsa::kAvx2},
                                                    {"avx2vnni", CpuIsa::kAvx2Vnni},
                                                    {"avx512", CpuIsa::kAvx512},
                                                    {"best", CpuIsa::kBest}};  // AMX, if available

std::string IsaWord(CpuIsa isa) {
  for (const auto& [name, known] : kIsas) {
    if (known == isa) {
      return name;
    }
  }
  return "";
}

void RunIsa(const Options& options, const std::byte* weights, CpuIsa isa, bench::Results* results) {
  bench::KernelBench bench(options.run, weights, isa);
  const double hertz = bench::MeasureClock();
  std::printf("\n== %s, %.1f GiB of weights on %s pages, %.2f GHz\n", bench.Describe().c_str(),
              static_cast<double>(options.run.size) / (1 << 30), options.small_pages ? "small" : "huge",
              hertz / 1e9);
  std::vector<Line> lines;
  for (const bench::KernelShape& shape : bench::kKernelShapes) {
    for (const bench::KernelEncoding& encoding : bench::kKernelEncodings) {
      for (const char* kind : {"rows", "down", "expert"}) {
        if (Chosen(options.shapes, shape.name) && Chosen(options.encodings, encoding.name) &&
            Chosen(options.kinds, kind)) {
          lines.push_back({bench.Workload(shape, encoding, kind), {}, {}, {}});
        }
      }
    }
  }
  for (uint32_t round = 0; round < options.rounds && !lines.empty(); ++round) {
    double before = bench.Base();
    for (Line& line : lines) {
      const bench::Pass pass = line.workload.pass();
      const double after = bench.Base();
      line.speeds.push_back(pass.bytes / pass.seconds);
      line.bases.push_back(std::max(before, after));
      line.shares.push_back(line.speeds.back() / line.bases.back());
      before = after;
    }
  }
  if (!lines.empty()) {
    PrintLines(lines, IsaWord(isa), hertz, bench.threads(), results);
  }
  if (Chosen(options.kinds, "prefill")) {
    std::printf("\n%-8s %22s %9s %22s %9s\n", "encoding", "MatMul 512 x 2048^2", "of bf16", "4 experts x 64",
                "of bf16");
    double matmul_base = 0;
    double expert_base = 0;
    for (const bench::KernelEncoding& encoding : bench::kKernelEncodings) {
      if (Chosen(options.encodings, encoding.name) || std::string("bf16") == encoding.name) {
        const double matmul = bench.PrefillMatMul(encoding, options.rounds);
        const double expert = bench.PrefillExperts(encoding, options.rounds);
        matmul_base = matmul_base == 0 ? matmul : matmul_base;
        expert_base = expert_base == 0 ? expert : expert_base;
        std::printf("%-8s %14.1f GFLOP/s %8.0f%% %14.1f GFLOP/s %8.0f%%\n", encoding.name, 2 * matmul / 1e9,
                    100 * matmul / matmul_base, 2 * expert / 1e9, 100 * expert / expert_base);
        results->Add(absl::StrCat(IsaWord(isa), " prefill, MatMul 512 x 2048^2, ", encoding.name),
                     2 * matmul / 1e9, "GFLOP/s");
      }
    }
  }
  bench.PrintForkJoin();
}

bool ParseIsa(const std::string& value, std::vector<CpuIsa>* isas) {
  isas->clear();
  for (const auto& [name, isa] : kIsas) {
    if (value == name || (value == "all" && isa != CpuIsa::kBest && CpuIsaSupported(isa))) {
      isas->push_back(isa);
    }
  }
  return !isas->empty();
}

bool ParseOptions(int argc, char** argv, Options* options) {
  ParseIsa("all", &options->isas);
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--small-pages") {
      options->small_pages = true;
      continue;
    }
    if (i + 1 == argc) {
      return false;
    }
    const std::string value = argv[++i];
    const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--size") {
      options->run.size = number / (2 << 20) * (2 << 20);
    } else if (flag == "--pass") {
      options->run.pass_bytes = number;
    } else if (flag == "--threads") {
      options->run.threads = static_cast<uint32_t>(number);
    } else if (flag == "--rounds") {
      options->rounds = static_cast<uint32_t>(number);
    } else if (flag == "--shape") {
      options->shapes = value;
    } else if (flag == "--encoding") {
      options->encodings = value;
    } else if (flag == "--kind") {
      options->kinds = value;
    } else if (flag != "--isa" || !ParseIsa(value, &options->isas)) {
      return false;
    }
  }
  return options->run.size >= (512 << 20) && options->rounds > 0 && options->run.pass_bytes >= (1 << 20) &&
         options->run.pass_bytes <= options->run.size;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("kernel_bench", &argc, argv);
  sluice::Options options;
  if (!sluice::ParseOptions(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: kernel_bench [--size BYTES (512 MiB at least)] [--pass BYTES] [--threads N] [--rounds N]"
        " [--isa best|avx2|avx2vnni|avx512|all] [--shape mixtral|qwen3|all] [--encoding NAME,...|all]"
        " [--kind rows,down,expert,prefill|all] [--small-pages] [--json FILE]\n");
    return 2;
  }
  const std::byte* weights = sluice::MakeWeights(options);
  for (const sluice::CpuIsa isa : options.isas) {
    sluice::RunIsa(options, weights, isa, &results);
  }
  const uint32_t threads =
      options.run.threads != 0 ? options.run.threads : std::thread::hardware_concurrency();
  return results.Write(threads) ? 0 : 1;
}
