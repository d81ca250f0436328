// Upper bounds of the speed of device cuda's kernels. Their launches run on the interpreter of
// tests/cuda_fake, which counts bytes, instructions and cycles of shared memory; published limits of GPUs
// turn the counts into times. Nothing is measured on a GPU: latency, cache limits, launch costs and ptxas'
// output are ignored, so a real GPU can only be slower.
//
// usage: cuda_bounds [WORD] [--json FILE]      only the cases whose name contains WORD
//        cuda_bounds --golden FILE             fails if counts of small cases differ by more than 2 %
//        cuda_bounds --write-golden FILE       writes them
//
// Cases, at the shapes of Mixtral 8x7B and Qwen3-30B-A3B: the product of one token with a q4 and a q2 matrix;
// one token's q4 and q2 experts with 80 % of the neurons left out by their up part; attention of one token
// over 4096 f16 positions. Also counted are a layer's kernels for a token whose experts are all resident.
// Small cases have the same columns, but few rows and positions.
//
// A launch's bound is the longest of three times: its sectors of 32 bytes over the memory's bandwidth; its
// warp instructions, four per clock and multiprocessor; its cycles of shared memory, one per clock. A grid
// with fewer blocks than multiprocessors uses only as many. The printed share is the time of the bytes that
// the operation must read, divided by that bound. Targets: 80 % for products, 75 % for attention, 71 % for
// sparse experts (1.4 times their bytes).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/counted.h"
#include "bench/results.h"

namespace sluice::bench {
namespace {

constexpr double kSectorBytes = 32;
constexpr int kSchedulers = 4;  // per multiprocessor; each issues one instruction per clock

// Published limits: multiprocessors, boost clock, memory bandwidth. `capability`: compute capability of the
// PTX.
struct Gpu {
  const char* name;
  double multiprocessors;
  double clock;      // Hz
  double bandwidth;  // bytes per second
  int capability;
};
constexpr Gpu kGpus[] = {{"T4", 40, 1.59e9, 320e9, 75},
                         {"RTX 3090", 82, 1.695e9, 936e9, 80},
                         {"RTX 4090", 128, 2.52e9, 1008e9, 80},
                         {"H100 SXM", 132, 1.755e9, 3350e9, 80}};

constexpr Model kModels[] = {{"Mixtral", 4096, 14336, 8, 2, 32, 8, 4096, 4096},
                             {"Qwen3-30B", 2048, 768, 128, 8, 32, 4, 4096, 4096}};
constexpr Model kSmallModels[] = {{"Mixtral", 4096, 128, 8, 1, 4, 1, 64, 512},
                                  {"Qwen3-30B", 2048, 128, 128, 1, 8, 1, 64, 512}};

// Lower bound of a launch's time by GPU resource, in seconds.
struct Bound {
  double memory = 0;
  double instructions = 0;
  double shared = 0;
  double seconds() const { return std::max({memory, instructions, shared}); }
  const char* limit() const {
    return seconds() == memory ? "memory" : seconds() == instructions ? "instructions" : "shared memory";
  }
};

Bound BoundOf(const cuda_fake::KernelCounts& launch, const Gpu& gpu) {
  const double used = std::min(gpu.multiprocessors, static_cast<double>(launch.blocks));
  const cuda_fake::LaunchCounts& counts = launch.counts;
  return {static_cast<double>(counts.unique_sectors) * kSectorBytes / gpu.bandwidth,
          static_cast<double>(counts.warp_instructions) / (used * kSchedulers * gpu.clock),
          static_cast<double>(counts.shared_waves) / (used * gpu.clock)};
}

std::string ShortName(const std::string& mangled) {
  const size_t end = mangled.find("Kernel");
  size_t begin = end;
  while (begin > 0 && absl::ascii_isalpha(static_cast<unsigned char>(mangled[begin - 1]))) {
    --begin;
  }
  return end == std::string::npos ? mangled : mangled.substr(begin, end - begin);
}

void PrintCounts(const std::string& what, const Counted& counted, int capability) {
  std::printf("%s, PTX %d: %.3f MB needed\n", what.c_str(), capability, counted.bytes * 1e-6);
  for (const cuda_fake::KernelCounts& launch : counted.launches) {
    const cuda_fake::LaunchCounts& c = launch.counts;
    const auto ratio = [](uint64_t a, uint64_t b) {
      return static_cast<double>(a) / static_cast<double>(std::max<uint64_t>(b, 1));
    };
    std::printf(
        "  %-14s %6lu blocks of %4lu: %8.3f MB touched, %.2f sectors read a sector touched, %.1f sectors a "
        "request, %.1f turns a shared request, %.1f warp-instructions a sector\n",
        ShortName(launch.kernel).c_str(), launch.blocks, launch.threads,
        static_cast<double>(c.unique_sectors) * kSectorBytes * 1e-6,
        ratio(c.global_sectors, c.unique_sectors), ratio(c.global_sectors, c.global_requests),
        ratio(c.shared_waves, c.shared_requests), ratio(c.warp_instructions, c.unique_sectors));
  }
}

template <typename Count>
void Report(const std::string& what, const std::string& wanted, Results* results, Count count) {
  if (!absl::StrContains(what, wanted)) {
    return;
  }
  Counted counted;
  int counted_for = 0;
  for (const Gpu& gpu : kGpus) {
    if (gpu.capability != counted_for) {
      counted_for = gpu.capability;
      counted = count(counted_for);
      PrintCounts(what, counted, counted_for);
    }
    double seconds = 0;
    Bound longest;
    for (const cuda_fake::KernelCounts& launch : counted.launches) {
      const Bound bound = BoundOf(launch, gpu);
      seconds += bound.seconds();
      longest = bound.seconds() > longest.seconds() ? bound : longest;
    }
    const double share = 100 * counted.bytes / gpu.bandwidth / seconds;
    std::printf("    %-9s at least %8.2f us, at most %3.0f %% of the bandwidth, by %s\n", gpu.name,
                seconds * 1e6, share, longest.limit());
    if (&gpu == std::end(kGpus) - 1) {
      for (const cuda_fake::KernelCounts& launch : counted.launches) {
        const Bound bound = BoundOf(launch, gpu);
        const double whole = 100 / bound.seconds();
        results->Add(absl::StrCat(what, ": ", gpu.name, ", ", ShortName(launch.kernel)),
                     100 * bound.seconds() / seconds,
                     absl::StrFormat("%% of the time, limited by %s: memory %.0f, instructions %.0f, shared "
                                     "memory %.0f %% of it; %.1f warp-instructions a sector, %u blocks for "
                                     "%.0f multiprocessors",
                                     bound.limit(), bound.memory * whole, bound.instructions * whole,
                                     bound.shared * whole,
                                     static_cast<double>(launch.counts.warp_instructions) /
                                         static_cast<double>(launch.counts.unique_sectors),
                                     launch.blocks, gpu.multiprocessors));
      }
    }
    results->Add(absl::StrCat(what, ": ", gpu.name), share,
                 absl::StrFormat("%% of the bandwidth at most, by %s", longest.limit()));
  }
}

struct Coded {
  Encoding encoding;
  const char* word;
};

void Main(const std::string& wanted, Results* results) {
  constexpr Coded kCoded[] = {{Encoding::kQ4, "q4"}, {Encoding::kQ2, "q2"}};
  for (const Model& model : kModels) {
    for (const auto& [encoding, word] : kCoded) {
      Report(absl::StrFormat("%s, product with %s [%u, %u], one token", model.name, word, model.rows,
                             model.hidden),
             wanted, results, [&](int capability) { return CountProduct(model, encoding, capability); });
    }
    Report(
        absl::StrFormat("%s, q4 [%u, %u] expanded to f16 for cuBLASLt", model.name, model.rows, model.hidden),
        wanted, results, [&](int capability) { return CountExpand(model, Encoding::kQ4, capability); });
    Report(absl::StrFormat("%s, attention of one token over %u positions, f16", model.name, model.positions),
           wanted, results, [&](int capability) { return CountAttention(model, capability); });
    for (const auto& [encoding, word] : kCoded) {
      Report(absl::StrFormat("%s, %u experts of %s [%u, %u], 80 %% left out, one token", model.name,
                             model.top_k, word, model.width, model.hidden),
             wanted, results,
             [&](int capability) { return CountSparseExperts(model, encoding, capability); });
    }
  }
  for (const Model& model : kSmallModels) {
    const std::string what = absl::StrCat(model.name, ", a layer of one token, all experts there");
    if (absl::StrContains(what, wanted)) {
      const uint64_t kernels = CountLayerKernels(model, 80);
      std::printf("%s: %lu kernels\n", what.c_str(), kernels);
      results->Add(what, static_cast<double>(kernels), "kernels");
    }
  }
}

// Returns the counts of the small cases, by case, kernel and quantity.
std::map<std::string, double> SmallCounts() {
  constexpr Coded kCoded[] = {{Encoding::kQ8, "q8"}, {Encoding::kQ4, "q4"},       {Encoding::kQ3, "q3"},
                              {Encoding::kQ2, "q2"}, {Encoding::kMxfp4, "mxfp4"}, {Encoding::kBf16, "bf16"}};
  std::map<std::string, double> counts;
  const auto add = [&](const std::string& what, const Counted& counted) {
    for (const cuda_fake::KernelCounts& launch : counted.launches) {
      const cuda_fake::LaunchCounts& c = launch.counts;
      const std::string name = absl::StrCat(what, ", ", ShortName(launch.kernel), ": ");
      counts[name + "sectors"] = static_cast<double>(c.global_sectors);
      counts[name + "sectors once"] = static_cast<double>(c.unique_sectors);
      counts[name + "shared turns"] = static_cast<double>(c.shared_waves);
      counts[name + "warp-instructions"] = static_cast<double>(c.warp_instructions);
    }
  };
  for (const int capability : {75, 80}) {
    for (const Model& model : kSmallModels) {
      const std::string of = absl::StrCat("PTX ", capability, ", ", model.name, ", ");
      for (const auto& [encoding, word] : kCoded) {
        add(absl::StrCat(of, "product with ", word), CountProduct(model, encoding, capability));
        add(absl::StrCat(of, "sparse experts of ", word), CountSparseExperts(model, encoding, capability));
      }
      add(absl::StrCat(of, "q4 expanded to f16"), CountExpand(model, Encoding::kQ4, capability));
      add(absl::StrCat(of, "attention"), CountAttention(model, capability));
      counts[absl::StrCat(of, "kernels of a layer")] =
          static_cast<double>(CountLayerKernels(model, capability));
    }
  }
  return counts;
}

// True if all counts are within 2 % of the file's.
bool Compare(const char* path) {
  constexpr double kAllowed = 0.02;
  std::ifstream file(path);
  std::map<std::string, double> golden = nlohmann::json::parse(file).get<std::map<std::string, double>>();
  bool same = true;
  for (const auto& [name, count] : SmallCounts()) {
    const auto expected = golden.extract(name);
    if (expected.empty() || std::fabs(count - expected.mapped()) > kAllowed * expected.mapped()) {
      std::printf("%s: %.0f, golden %s\n", name.c_str(), count,
                  expected.empty() ? "none" : absl::StrCat(expected.mapped()).c_str());
      same = false;
    }
  }
  for (const auto& [name, count] : golden) {
    std::printf("%s: none, golden %.0f\n", name.c_str(), count);
    same = false;
  }
  std::printf(
      same ? "the counts are those of %s\n" : "counts differ from %s: state why, and write them anew\n",
      path);
  return same;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--golden") == 0) {
    return sluice::bench::Compare(argv[2]) ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  if (argc == 3 && std::strcmp(argv[1], "--write-golden") == 0) {
    std::ofstream(argv[2]) << nlohmann::json(sluice::bench::SmallCounts()).dump(1) << "\n";
    return EXIT_SUCCESS;
  }
  sluice::bench::Results results("cuda_bounds", &argc, argv);
  results.Of("Upper bounds for device cuda from published limits; measured on no GPU");
  sluice::bench::Main(argc > 1 ? argv[1] : "", &results);
  return results.Write(1) ? EXIT_SUCCESS : EXIT_FAILURE;
}
