// How fast the kernels of device cuda could be at most: their launches run on the interpreter of
// tests/cuda_fake, which counts bytes, instructions and turns of shared memory; published limits of GPUs make
// times of the counts. Nothing here is measured on a GPU: latency, caches' limits, launches and what ptxas
// makes of the PTX are left out, so that a GPU can only be slower.
//
// usage: cuda_bounds [WORD] [--json FILE]      only the cases whose name has WORD
//
// Cases, at the shapes of Mixtral 8x7B and Qwen3-30B-A3B: a product of one token with a q4 and a q2 matrix;
// one token's experts of q4 of which 80 % of the neurons are left out by their up part; attention of one
// token over 4096 positions of f16.
//
// A launch's bound is the longest of: the sectors of 32 bytes that it touches by the memory's bandwidth; its
// warp-instructions by four a clock and multiprocessor; its turns of shared memory by one; a grid of fewer
// blocks than multiprocessors uses as many as it has blocks. The share printed is the time that the bytes
// which the operation cannot do without would take of that. Marks (CUDA.md): 80 % for products, 75 % for
// attention, 71 % for sparse experts (1.4 times their bytes).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "bench/results.h"
#include "common/half.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/kv_layout.h"
#include "pack/row_layout.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::bench {
namespace {

constexpr double kSectorBytes = 32;
constexpr int kSchedulers = 4;  // of a multiprocessor, an instruction a clock each

// Published limits: multiprocessors, boost clock, memory bandwidth. `capability`: of the PTX that is counted.
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

struct Model {
  const char* name;
  uint32_t hidden;
  uint32_t width;
  uint32_t top_k;
  uint32_t heads;
  uint32_t kv_heads;
};
constexpr Model kModels[] = {{"Mixtral", 4096, 14336, 2, 32, 8}, {"Qwen3-30B", 2048, 768, 8, 32, 4}};
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kPositions = 4096;

void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "cuda_bounds: %s\n", std::string(status.message()).c_str());
    std::exit(EXIT_FAILURE);
  }
}
template <typename T>
T Get(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Device cuda on a fresh fake, and data for it.
class Bench {
 public:
  Bench(const Model& model, int capability) : random_(7) {
    cuda_fake::ResetFake({.memory_bytes = uint64_t{4} << 30, .capability = capability, .counts = true});
    BackendLimits limits;
    limits.max_tokens = model.top_k;
    limits.max_sequences = 1;
    limits.max_cols = std::max(model.hidden, model.heads * kHeadDim);
    limits.hidden = model.hidden;
    limits.heads = model.heads;
    limits.head_dim = kHeadDim;
    limits.max_context = kPositions;
    limits.experts = model.top_k;
    limits.top_k = model.top_k;
    limits.expert_width = model.width;
    backend_ = Get(CreateCudaBackend(limits));
  }

  Queue& queue() { return backend_->queue(); }
  BufferRef Zeros(uint64_t bytes) { return {Get(backend_->Allocate(bytes, BufferKind::kActivations)), 0}; }
  Rows Normals(uint32_t cols) {
    std::vector<float> values(cols);
    std::normal_distribution<float> normal;
    std::generate(values.begin(), values.end(), [&] { return normal(random_); });
    const BufferRef ref = Zeros(4 * cols);
    Check(queue().Upload(values.data(), 4 * cols, ref));
    return {ref, cols};
  }
  // Random codes, scales of one size, zeros in the middle. Registered host memory: the interpreter keeps no
  // history of its bytes.
  WeightView Matrix(Encoding encoding, uint32_t rows, uint32_t cols) {
    WeightView view;
    view.encoding = MakeDescriptor(encoding);
    view.rows = rows;
    view.cols = cols;
    view.stride = RoundStride(RowBytes(view.encoding, cols));
    const uint64_t bytes = rows * view.stride;
    std::vector<uint64_t>& words = memory_.emplace_back(bytes / 8 + 4);
    std::generate(words.begin(), words.end(), [&] { return random_(); });
    uint8_t* base = reinterpret_cast<uint8_t*>(words.data());
    base += (32 - reinterpret_cast<uintptr_t>(base) % 32) % 32;
    const uint16_t scale = FloatToF16(0.01f);
    const uint16_t zero = FloatToF16(static_cast<float>((1u << BitsOf(encoding)) - 1) / 2);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t g = 0; g < GroupsPerRow(view.encoding, cols); ++g) {
        std::memcpy(base + r * view.stride + ScaleOffset(view.encoding, cols) + 2 * g, &scale, 2);
        std::memcpy(base + r * view.stride + ZeroOffset(view.encoding, cols) + 2 * g, &zero, 2);
      }
    }
    view.base = {Get(backend_->Import({reinterpret_cast<const std::byte*>(base), bytes})), 0};
    return view;
  }
  std::vector<float> Floats(BufferRef ref, uint64_t count) {
    std::vector<float> values(count);
    Check(queue().Download(ref, 4 * count, values.data()));
    Check(queue().Wait(queue().Record()));
    return values;
  }
  // The launches since the last call, but those that round activations: every operation has one.
  std::vector<cuda_fake::KernelCounts> TakeLaunches() {
    Check(queue().Wait(queue().Record()));
    std::vector<cuda_fake::KernelCounts> launches = cuda_fake::TakeKernelCounts();
    std::erase_if(launches, [](const cuda_fake::KernelCounts& launch) {
      return absl::StrContains(launch.kernel, "PrepareKernel");
    });
    for (const cuda_fake::Report& report : cuda_fake::TakeReports()) {
      Check(absl::InternalError(report.text));
    }
    return launches;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<uint64_t>> memory_;
  std::unique_ptr<Backend> backend_;
};

// What an operation cannot do without, and what its launches ask for.
struct Counted {
  double bytes = 0;
  std::vector<cuda_fake::KernelCounts> launches;
};

Counted CountProduct(const Model& model, Encoding encoding, int capability) {
  Bench bench(model, capability);
  const uint32_t rows = model.heads * kHeadDim;  // the projection of q
  const WeightView weights = bench.Matrix(encoding, rows, model.hidden);
  const Rows x = bench.Normals(model.hidden);
  const MatMulPart part = {weights, {bench.Zeros(4 * rows), rows}, {}, 1.0f};
  Check(bench.queue().MatMul({.x = x, .tokens = 1, .cols = model.hidden, .parts = {&part, 1}}));
  return {double{1} * rows * static_cast<double>(RowBytes(weights.encoding, model.hidden)),
          bench.TakeLaunches()};
}

Counted CountSparseExperts(const Model& model, int capability) {
  constexpr double kLeftOut = 0.8;
  Bench bench(model, capability);
  const Rows x = bench.Normals(model.hidden);
  const uint32_t row = 0;
  std::vector<uint32_t> slots(model.top_k);
  std::vector<ExpertWork> experts(model.top_k);
  for (uint32_t e = 0; e < model.top_k; ++e) {
    slots[e] = e;
    experts[e].up = bench.Matrix(Encoding::kQ4, model.width, model.hidden);
    experts[e].gate = bench.Matrix(Encoding::kQ4, model.width, model.hidden);
    experts[e].down = bench.Matrix(Encoding::kQ4, model.width, model.hidden);
    experts[e].rows = {&row, 1};
    experts[e].slots = {&slots[e], 1};
    experts[e].sparsity = SparsityOrder::kUp;
    const LeadWork lead = {
        .lead = experts[e].up, .rows = {&row, 1}, .values = {bench.Zeros(4 * model.width), model.width}};
    Check(bench.queue().ExpertLeads(
        {.x = x, .tokens = 1, .hidden = model.hidden, .order = SparsityOrder::kUp, .experts = {&lead, 1}}));
    std::vector<float> values = bench.Floats(lead.values.base, model.width);
    std::for_each(values.begin(), values.end(), [](float& value) { value = std::fabs(value); });
    const auto threshold = values.begin() + static_cast<int64_t>(kLeftOut * model.width);
    std::nth_element(values.begin(), threshold, values.end());
    experts[e].threshold = *threshold;
  }
  bench.TakeLaunches();
  const BufferRef active = bench.Zeros(4 * model.top_k);
  Check(bench.queue().MoeExperts({.x = x,
                                  .tokens = 1,
                                  .hidden = model.hidden,
                                  .experts = experts,
                                  .y = {bench.Zeros(4 * model.top_k * model.hidden), model.hidden},
                                  .slots = model.top_k,
                                  .active = active}));
  Counted counted;
  counted.launches = bench.TakeLaunches();
  std::vector<uint32_t> kept(model.top_k);
  Check(bench.queue().Download(active, 4 * model.top_k, kept.data()));
  Check(bench.queue().Wait(bench.queue().Record()));
  const double row_bytes = static_cast<double>(RowBytes(experts[0].up.encoding, model.hidden));
  for (const uint32_t neurons : kept) {
    counted.bytes += row_bytes * (model.width + 2.0 * neurons);  // all of up; of gate and down what counts
  }
  return counted;
}

Counted CountAttention(const Model& model, int capability) {
  Bench bench(model, capability);
  KvView kv;
  kv.type = KvType::kF16;
  kv.kv_heads = model.kv_heads;
  kv.head_dim = kHeadDim;
  kv.pages = kPositions / kPageTokens;
  kv.page_stride = KvPageBytes(kv.type, kv.kv_heads, kv.head_dim);
  kv.k = bench.Zeros(kv.pages * kv.page_stride);
  kv.v = bench.Zeros(kv.pages * kv.page_stride);
  std::vector<uint32_t> pages(kv.pages);
  for (uint32_t i = 0; i < kv.pages; ++i) {
    pages[i] = i;
  }
  const SequenceRows sequence = {0, 1, kPositions - 1, pages};
  const uint32_t cols = model.heads * kHeadDim;
  Check(bench.queue().Attention({.q = bench.Normals(cols),
                                 .tokens = 1,
                                 .heads = model.heads,
                                 .scale = 0.088f,
                                 .sequences = {&sequence, 1},
                                 .kv = kv,
                                 .out = {bench.Zeros(4 * cols), cols}}));
  return {2.0 * static_cast<double>(kv.pages * kv.page_stride), bench.TakeLaunches()};
}

struct Bound {
  double seconds = 0;
  const char* limit = "";
};

Bound BoundOf(const cuda_fake::KernelCounts& launch, const Gpu& gpu) {
  const double used = std::min(gpu.multiprocessors, static_cast<double>(launch.blocks));
  const cuda_fake::LaunchCounts& counts = launch.counts;
  const Bound bounds[] = {
      {static_cast<double>(counts.unique_sectors) * kSectorBytes / gpu.bandwidth, "memory"},
      {static_cast<double>(counts.warp_instructions) / (used * kSchedulers * gpu.clock), "instructions"},
      {static_cast<double>(counts.shared_waves) / (used * gpu.clock), "shared memory"}};
  return *std::max_element(std::begin(bounds), std::end(bounds),
                           [](const Bound& a, const Bound& b) { return a.seconds < b.seconds; });
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
      seconds += bound.seconds;
      longest = bound.seconds > longest.seconds ? bound : longest;
    }
    const double share = 100 * counted.bytes / gpu.bandwidth / seconds;
    std::printf("    %-9s at least %8.2f us, at most %3.0f %% of the bandwidth, by %s\n", gpu.name,
                seconds * 1e6, share, longest.limit);
    results->Add(absl::StrCat(what, ": ", gpu.name), share,
                 absl::StrFormat("%% of the bandwidth at most, by %s", longest.limit));
  }
}

void Main(const std::string& wanted, Results* results) {
  for (const Model& model : kModels) {
    for (const auto& [encoding, word] : {std::pair{Encoding::kQ4, "q4"}, {Encoding::kQ2, "q2"}}) {
      Report(absl::StrFormat("%s, product with %s [%u, %u], one token", model.name, word,
                             model.heads * kHeadDim, model.hidden),
             wanted, results, [&](int capability) { return CountProduct(model, encoding, capability); });
    }
    Report(absl::StrFormat("%s, attention of one token over %u positions, f16", model.name, kPositions),
           wanted, results, [&](int capability) { return CountAttention(model, capability); });
    Report(absl::StrFormat("%s, %u experts of q4 [%u, %u], 80 %% left out, one token", model.name,
                           model.top_k, model.width, model.hidden),
           wanted, results, [&](int capability) { return CountSparseExperts(model, capability); });
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Results results("cuda_bounds", &argc, argv);
  results.Of("Upper bounds for device cuda from published limits; measured on no GPU");
  sluice::bench::Main(argc > 1 ? argv[1] : "", &results);
  return results.Write(1) ? EXIT_SUCCESS : EXIT_FAILURE;
}
