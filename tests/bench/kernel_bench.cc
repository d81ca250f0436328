// Share of the read bandwidth that the host backend's kernels reach, measured in one run over one mapping.
//
// Workloads, all for one token (decode) unless said otherwise, all through the public interface:
//   rows      MatMul over bf16 and q8 rows of 2048 and 4096 values
//   experts   MoeExperts with the shapes of Mixtral 8x7B (2 of 8) and Qwen3-30B-A3B (8 of 128), bf16 and q8;
//             `down` is about a third of it
//   prefill   MatMul and MoeExperts over 512 tokens: share of the multiply-adds that registers alone reach
//   fork-join an empty region
// The base (read_bandwidth.h) is measured over the same mapping with the same threads, before and after;
// weights are walked through the whole mapping, so nothing stays in a cache. Each workload takes turns with
// the others for `rounds` rounds: best and median are printed, in GB/s and as share of the best base.
//
// kernel_bench [--size BYTES] [--threads N] [--isa best|avx2|avx512] [--rounds N] [--small-pages]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/pack/row_layout.h"
#include "kernels/backend.h"
#include "kernels/host/read_bandwidth.h"
#include "kernels/host/thread_pool.h"

namespace sluice {
namespace {

struct Options {
  uint64_t size = uint64_t{4} << 30;
  uint32_t threads = 0;
  HostIsa isa = HostIsa::kBest;
  uint32_t rounds = 5;
  bool small_pages = false;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

// A mapping full of values that are small and finite as bf16, as f16 and as codes.
std::byte* MakeWeights(const Options& options) {
  void* memory =
      mmap(nullptr, options.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    Check(absl::ResourceExhaustedError("no memory for the weights; try --size"));
  }
  madvise(memory, options.size, options.small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  std::vector<uint16_t> pattern(1 << 19);
  std::mt19937 random(1);
  for (uint16_t& value : pattern) {
    value = static_cast<uint16_t>(0x3c00u | (random() & 0x80ffu));
  }
  const uint64_t step = pattern.size() * 2;
  for (uint64_t at = 0; at < options.size; at += step) {
    std::memcpy(static_cast<std::byte*>(memory) + at, pattern.data(), std::min(step, options.size - at));
  }
  return static_cast<std::byte*>(memory);
}

// One line of the table: bytes (or multiply-adds) per pass, and the seconds of each round.
struct Workload {
  std::string name;
  double amount = 0;
  std::function<void()> pass;
  std::vector<double> seconds;
  double Best() const { return amount / *std::min_element(seconds.begin(), seconds.end()); }
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return amount / sorted[sorted.size() / 2];
  }
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), weights_(MakeWeights(options)) {
    BackendLimits limits;
    limits.max_tokens = 512;
    limits.max_sequences = 1;
    limits.max_cols = limits.hidden = 4096;
    limits.heads = 1;
    limits.head_dim = 128;
    limits.max_context = 1;
    limits.experts = 128;
    limits.top_k = 8;
    limits.expert_width = 14336;
    auto backend = CreateHostBackend(limits, options.threads, options.isa);
    Check(backend.status());
    backend_ = *std::move(backend);
    ImportSpec spec;
    spec.base = weights_;
    spec.bytes = options.size;
    auto imported = backend_->Import(spec);
    Check(imported.status());
    imported_ = *imported;
    x_ = Activations(512 * 4096);
    y_ = Activations(512 * 8 * 4096);
    for (uint64_t i = 0; i < 512 * 4096; ++i) {
      reinterpret_cast<float*>(backend_->HostWrite(x_, 512 * 4096 * 4))[i] = static_cast<float>(i % 7) - 3.0f;
    }
  }

  void Run() {
    std::printf("%s, %.1f GiB of weights on %s pages\n", backend_->Describe().c_str(),
                static_cast<double>(options_.size) / (1 << 30), options_.small_pages ? "small" : "huge");
    AddRows(2048, MakeDescriptor(Encoding::kBf16));
    AddRows(4096, MakeDescriptor(Encoding::kBf16));
    AddRows(2048, MakeDescriptor(Encoding::kQ8));
    AddRows(4096, MakeDescriptor(Encoding::kQ8));
    AddExperts("mixtral-8x7b", 4096, 14336, 2, MakeDescriptor(Encoding::kBf16));
    AddExperts("qwen3-30b-a3b", 2048, 768, 8, MakeDescriptor(Encoding::kBf16));
    AddExperts("mixtral-8x7b", 4096, 14336, 2, MakeDescriptor(Encoding::kQ8));
    AddExperts("qwen3-30b-a3b", 2048, 768, 8, MakeDescriptor(Encoding::kQ8));
    double base = MeasureBase();
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      for (Workload& workload : workloads_) {
        workload.seconds.push_back(Seconds(workload.pass));
      }
    }
    base = std::max(base, MeasureBase());
    std::printf("\n%-32s %10s %10s %8s %8s\n", "decode, one token", "best GB/s", "median", "best", "median");
    for (const Workload& workload : workloads_) {
      std::printf("%-32s %10.2f %10.2f %7.1f%% %7.1f%%\n", workload.name.c_str(), workload.Best() / 1e9,
                  workload.Median() / 1e9, 100 * workload.Best() / base, 100 * workload.Median() / base);
    }
    RunPrefill();
    RunForkJoin();
  }

 private:
  BufferRef Activations(uint64_t floats) {
    auto buffer = backend_->Allocate(floats * 4, BufferKind::kActivations);
    Check(buffer.status());
    return {*buffer, 0};
  }

  double MeasureBase() {
    ReadBandwidthOptions options;
    options.threads = options_.threads;
    options.isa = options_.isa;
    options.min_bytes = options_.size;
    const absl::Span<const std::byte> region(weights_, options_.size);
    auto base = MeasureReadBandwidth({&region, 1}, options);
    Check(base.status());
    std::printf(
        "read bandwidth %.2f GB/s: one stream %.2f, with prefetch %.2f; four %.2f, with prefetch %.2f\n",
        base->best / 1e9, base->variants[0][0] / 1e9, base->variants[1][0] / 1e9, base->variants[0][1] / 1e9,
        base->variants[1][1] / 1e9);
    return base->best;
  }

  WeightView View(const EncodingDescriptor& d, uint64_t offset, uint32_t rows, uint32_t cols) const {
    WeightView view;
    view.encoding = d;
    view.base = {imported_, offset};
    view.stride = RoundStride(RowBytes(d, cols));
    view.rows = rows;
    view.cols = cols;
    return view;
  }

  static std::string EncodingOf(const EncodingDescriptor& d) {
    return d.encoding == Encoding::kBf16 ? "bf16" : "q8";
  }

  // Matrices of 16 MiB, one after the other through the whole mapping.
  void AddRows(uint32_t cols, const EncodingDescriptor& d) {
    const uint64_t stride = RoundStride(RowBytes(d, cols));
    const uint32_t rows = static_cast<uint32_t>((16 << 20) / stride);
    const uint64_t calls = options_.size / (rows * stride);
    Workload workload;
    workload.name = "rows of " + std::to_string(cols) + ", " + EncodingOf(d);
    workload.amount = static_cast<double>(calls * rows * RowBytes(d, cols));
    workload.pass = [=, this] {
      backend_->BeginStep();
      for (uint64_t i = 0; i < calls; ++i) {
        const MatMulPart part{View(d, i * rows * stride, rows, cols), {y_, rows}, {}};
        Check(backend_->queue().MatMul({{x_, cols}, 1, cols, {}, {}, {&part, 1}, {}}));
      }
      backend_->EndStep();
    };
    workloads_.push_back(workload);
  }

  // Layers of top_k experts each, all experts of the mapping in an order that jumps.
  void AddExperts(const std::string& shape, uint32_t hidden, uint32_t width, uint32_t top_k,
                  const EncodingDescriptor& d) {
    const uint64_t part_bytes = width * RoundStride(RowBytes(d, hidden));
    const uint64_t experts = options_.size / (3 * part_bytes) / top_k * top_k;
    if (experts == 0) {
      std::printf("%s: an expert does not fit --size\n", shape.c_str());
      return;
    }
    std::vector<uint64_t> order(experts);
    for (uint64_t i = 0; i < experts; ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    Workload workload;
    workload.name = "experts of " + shape + ", " + EncodingOf(d);
    workload.amount = static_cast<double>(experts * 3 * width * RowBytes(d, hidden));
    workload.pass = [=, this] {
      backend_->BeginStep();
      for (uint64_t first = 0; first < experts; first += top_k) {
        RunExperts(&order[first], top_k, 1, d, hidden, width, part_bytes);
      }
      backend_->EndStep();
    };
    workloads_.push_back(workload);
  }

  // `tokens` tokens to each of the experts named by `order`.
  void RunExperts(const uint64_t* order, uint32_t experts, uint32_t tokens, const EncodingDescriptor& d,
                  uint32_t hidden, uint32_t width, uint64_t part_bytes) {
    std::vector<ExpertWork> work(experts);
    std::vector<uint32_t> rows(tokens);
    std::vector<uint32_t> slots(uint64_t{experts} * tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      rows[t] = t;
    }
    for (uint32_t i = 0; i < slots.size(); ++i) {
      slots[i] = i;
    }
    for (uint32_t e = 0; e < experts; ++e) {
      const uint64_t offset = order[e] * 3 * part_bytes;
      work[e].up = View(d, offset, width, hidden);
      work[e].gate = View(d, offset + part_bytes, width, hidden);
      work[e].down = View(d, offset + 2 * part_bytes, width, hidden);
      work[e].rows = rows;
      work[e].slots = absl::MakeSpan(slots).subspan(uint64_t{e} * tokens, tokens);
    }
    Check(backend_->queue().MoeExperts({.x = {x_, hidden},
                                        .tokens = tokens,
                                        .hidden = hidden,
                                        .experts = work,
                                        .y = {y_, hidden},
                                        .slots = experts * tokens}));
  }

  // Multiply-adds per second of all threads when everything is in the cache: the roof for prefill.
  double MeasureRoof() {
    const uint32_t rows = 64;
    Workload workload;
    const uint32_t cols = 512;
    workload.amount = 300.0 * rows * cols * 96;
    for (int i = 0; i < 5; ++i) {
      workload.seconds.push_back(Seconds([&] {
        for (int call = 0; call < 300; ++call) {
          const MatMulPart part{View(MakeDescriptor(Encoding::kF32), 0, rows, cols), {y_, rows}, {}};
          Check(backend_->queue().MatMul({{x_, cols}, 96, cols, {}, {}, {&part, 1}, {}}));
        }
      }));
    }
    return workload.Best();
  }

  void RunPrefill() {
    backend_->BeginStep();
    const double roof = MeasureRoof();
    std::printf("\n%-32s %10s %10s\n%-32s %10.1f\n", "prefill, 512 tokens", "GFLOP/s", "of small",
                "small f32 matrix, 96 tokens", 2 * roof / 1e9);
    const std::vector<uint64_t> order = {3, 1, 2, 0};
    for (const EncodingDescriptor& d : {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kQ8)}) {
      Workload rows;
      rows.name = "MatMul [2048, 2048], " + EncodingOf(d);
      rows.amount = 512.0 * 2048 * 2048;
      rows.pass = [&] {
        const MatMulPart part{View(d, 0, 2048, 2048), {y_, 2048}, {}};
        Check(backend_->queue().MatMul({{x_, 2048}, 512, 2048, {}, {}, {&part, 1}, {}}));
      };
      Workload experts;
      experts.name = "4 experts x 64 tokens, " + EncodingOf(d);
      experts.amount = 4.0 * 64 * 3 * 768 * 2048;
      experts.pass = [&] {
        RunExperts(order.data(), 4, 64, d, 2048, 768, 768 * RoundStride(RowBytes(d, 2048)));
      };
      for (Workload* workload : {&rows, &experts}) {
        for (uint32_t i = 0; i < options_.rounds; ++i) {
          workload->seconds.push_back(Seconds(workload->pass));
        }
        std::printf("%-32s %10.1f %9.1f%%\n", workload->name.c_str(), 2 * workload->Best() / 1e9,
                    100 * workload->Best() / roof);
      }
    }
    backend_->EndStep();
  }

  void RunForkJoin() {
    const BackendCounters before = backend_->Counters();
    ThreadPool pool(options_.threads == 0 ? 2 : options_.threads);
    pool.BeginStep();
    constexpr int kRegions = 20000;
    const double seconds = Seconds([&] {
      for (int i = 0; i < kRegions; ++i) {
        pool.Run(pool.threads(), [](uint32_t, uint32_t) {});
      }
    });
    pool.EndStep();
    std::printf(
        "\nempty fork-join of %u threads: %.2f us; the workloads' join wait: %.1f us of %.1f us a region\n",
        pool.threads(), seconds / kRegions * 1e6,
        before.join_wait_seconds / static_cast<double>(std::max<uint64_t>(before.fork_joins, 1)) * 1e6,
        before.region_seconds / static_cast<double>(std::max<uint64_t>(before.fork_joins, 1)) * 1e6);
  }

  const Options options_;
  std::byte* const weights_;
  std::unique_ptr<Backend> backend_;
  BufferId imported_ = kNoBuffer;
  BufferRef x_, y_;
  std::vector<Workload> workloads_;
};

bool ParseOptions(int argc, char** argv, Options* options) {
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
      options->size = number / (2 << 20) * (2 << 20);
    } else if (flag == "--threads") {
      options->threads = static_cast<uint32_t>(number);
    } else if (flag == "--rounds") {
      options->rounds = static_cast<uint32_t>(number);
    } else if (flag == "--isa" && (value == "best" || value == "avx2" || value == "avx512")) {
      options->isa = value == "best" ? HostIsa::kBest : value == "avx2" ? HostIsa::kAvx2 : HostIsa::kAvx512;
    } else {
      return false;
    }
  }
  return options->size >= (64 << 20) && options->rounds > 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  if (!sluice::ParseOptions(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: kernel_bench [--size BYTES (64 MiB at least)] [--threads N] [--isa best|avx2|avx512] "
        "[--rounds N] [--small-pages]\n");
    return 2;
  }
  sluice::Bench bench(options);
  bench.Run();
  return 0;
}
