// Measures device cuda on this machine's GPU, run by deploy/gpu/lease.sh: copy bandwidth by chunk size,
// overlap of one process' copies with another's kernels, products by encoding, one expert and layers of
// experts by the share of neurons left out, and the memory of contexts.
//
// usage: gpu_bench [--tiny] [WORD] [--json FILE]    only the cases whose name contains WORD
//
// The module is found as by the daemons (common/protocol/cuda_module.h), so the same program runs on the fake
// of tests/cuda_fake, where times mean nothing; --tiny reduces the shapes for that, to test the program.
//
// Targets: copies beside kernels reach at least 90 % of both alone (otherwise `pull` is the better
// transport); chunks reach at least 95 % of the pinned peak (FloE: 88 %).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_copies.h"
#include "bench/results.h"
#include "common/base/half.h"
#include "common/protocol/cuda_module.h"
#include "kernels/backend.h"
#include "pack/row_layout.h"

namespace sluice::bench {
namespace {

constexpr int kRounds = 5;

struct Shape {
  const char* name;
  uint32_t hidden;
  uint32_t width;
  uint32_t experts;
  uint32_t top_k;
};

// A backend with weights of its own, more than any cache holds.
class Kernels {
 public:
  Kernels(const CudaModuleApi& cuda, const Shape& shape, uint32_t tokens, uint64_t weight_bytes)
      : shape_(shape), weight_bytes_(weight_bytes) {
    BackendLimits limits;
    limits.max_tokens = tokens;
    limits.max_sequences = 1;
    limits.max_cols = limits.hidden = shape.hidden;
    limits.heads = 1;
    limits.head_dim = 128;
    limits.max_context = 1;
    limits.experts = shape.experts;
    limits.top_k = shape.top_k;
    limits.expert_width = shape.width;
    backend_ = NewBackend(cuda, limits);
    weights_ = Get(backend_->Allocate(weight_bytes, BufferKind::kActivations));
    std::vector<uint16_t> pattern((1 << 19) + 3083);  // not a multiple of a row, so rows differ
    std::mt19937 random(1);
    for (uint16_t& value : pattern) {
      value = static_cast<uint16_t>(0x3c00u |
                                    (random() & 0x80ffu));  // a small value as bf16, as f16 and as codes
    }
    for (uint64_t at = 0; at < weight_bytes; at += pattern.size() * 2) {
      Check(queue().Upload(pattern.data(), std::min(pattern.size() * 2, weight_bytes - at), {weights_, at}));
    }
    x_ = {Zeros(uint64_t{tokens} * shape.hidden), shape.hidden};
    y_ = {Zeros(uint64_t{tokens} * shape.top_k * std::max(shape.hidden, shape.width)), shape.hidden};
    std::vector<float> x(uint64_t{tokens} * shape.hidden);
    std::normal_distribution<float> normal;
    std::generate(x.begin(), x.end(), [&] { return normal(random) * 0.02f; });
    Check(queue().Upload(x.data(), 4 * x.size(), x_.base));
  }

  Queue& queue() { return backend_->queue(); }
  const Shape& shape() const { return shape_; }
  uint64_t weight_bytes() const { return weight_bytes_; }

  WeightView View(Encoding encoding, uint32_t rows, uint64_t* place) {
    WeightView view;
    view.encoding = MakeDescriptor(encoding);
    view.rows = rows;
    view.cols = shape_.hidden;
    view.stride = RoundStride(RowBytes(view.encoding, view.cols));
    *place = *place + rows * view.stride > weight_bytes_ ? 0 : *place;
    view.base = {weights_, *place};
    *place += rows * view.stride;
    return view;
  }

  // Returns the median device time, in seconds, of the operations that `run` enqueues.
  double Time(const std::function<void()>& run) {
    std::vector<double> seconds;
    for (int round = 0; round <= kRounds; ++round) {
      const Event begin = queue().Record();
      run();
      const Event end = queue().Record();
      Check(queue().Wait(end));
      if (round > 0) {  // the first round warms up
        seconds.push_back(Get(queue().Seconds(begin, end)));
      }
    }
    return Median(seconds);
  }

  // Times products of one token with square matrices, over all weights once.
  double ProductSeconds(Encoding encoding, double* bytes) {
    const uint32_t rows = shape_.hidden;
    const uint64_t row_bytes = RowBytes(MakeDescriptor(encoding), shape_.hidden);
    const uint64_t matrices = weight_bytes_ / (rows * RoundStride(row_bytes));
    *bytes = static_cast<double>(matrices * rows * row_bytes);
    return Time([&] {
      uint64_t place = 0;
      for (uint64_t i = 0; i < matrices; ++i) {
        const MatMulPart part = {View(encoding, rows, &place), {y_.base, rows}, {}, 1.0f};
        Check(queue().MatMul({.x = x_, .tokens = 1, .cols = shape_.hidden, .parts = {&part, 1}}));
      }
    });
  }

  // Times one layer: `tokens` with top_k random experts each, `threshold` with the up part as lead (0: none).
  double LayerSeconds(uint32_t tokens, Encoding up, Encoding rest, float threshold) {
    std::vector<std::vector<uint32_t>> rows(shape_.experts);
    std::vector<std::vector<uint32_t>> slots(shape_.experts);
    std::mt19937 random(tokens);
    std::vector<uint32_t> order(shape_.experts);
    std::iota(order.begin(), order.end(), 0);
    for (uint32_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random);
      for (uint32_t k = 0; k < shape_.top_k; ++k) {
        rows[order[k]].push_back(t);
        slots[order[k]].push_back(t * shape_.top_k + k);
      }
    }
    uint64_t place = 0;
    std::vector<ExpertWork> experts;
    for (uint32_t e = 0; e < shape_.experts; ++e) {
      if (rows[e].empty()) {
        continue;
      }
      ExpertWork& work = experts.emplace_back();
      work.up = View(up, shape_.width, &place);
      work.gate = View(rest, shape_.width, &place);
      work.down = View(rest, shape_.width, &place);
      work.rows = rows[e];
      work.slots = slots[e];
      work.sparsity = threshold > 0 ? SparsityOrder::kUp : SparsityOrder::kNone;
      work.threshold = threshold;
    }
    return Time([&] {
      Check(queue().MoeExperts({.x = x_,
                                .tokens = tokens,
                                .hidden = shape_.hidden,
                                .experts = experts,
                                .y = y_,
                                .slots = tokens * shape_.top_k}));
    });
  }

  // Returns the threshold of the up part that leaves out this share of neurons in the first expert's rows.
  float ThresholdFor(Encoding up, double left_out) {
    uint64_t place = 0;
    const uint32_t row = 0;
    const LeadWork lead = {
        .lead = View(up, shape_.width, &place), .rows = {&row, 1}, .values = {y_.base, shape_.width}};
    Check(queue().ExpertLeads(
        {.x = x_, .tokens = 1, .hidden = shape_.hidden, .order = SparsityOrder::kUp, .experts = {&lead, 1}}));
    std::vector<float> values(shape_.width);
    Check(queue().Download(y_.base, 4 * values.size(), values.data()));
    Check(queue().Wait(queue().Record()));
    std::for_each(values.begin(), values.end(), [](float& value) { value = std::fabs(value); });
    const auto at = values.begin() + static_cast<int64_t>(left_out * shape_.width);
    std::nth_element(values.begin(), at, values.end());
    return *at;
  }

 private:
  BufferRef Zeros(uint64_t floats) {
    return {Get(backend_->Allocate(4 * floats, BufferKind::kActivations)), 0};
  }

  const Shape shape_;
  const uint64_t weight_bytes_;
  std::unique_ptr<Backend> backend_;
  BufferId weights_ = kNoBuffer;
  Rows x_, y_;
};

// ---------------------------------------------------------------- cases

struct Sizes {
  Shape mixtral{"Mixtral", 4096, 14336, 8, 2};
  Shape qwen{"Qwen3.5", 2048, 512, 256, 8};
  uint64_t weights = uint64_t{2} << 30;
  uint64_t slab = 256 << 20;
  std::vector<uint64_t> chunks = {16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<uint32_t> batches = {1, 4, 16, 64, 256, 512};
  std::vector<double> shares = {0, 0.6, 0.7, 0.8, 0.87};
  double seconds = 0.5;
};

Sizes TinySizes() {
  Sizes sizes;
  sizes.mixtral = {"tiny", 64, 128, 4, 2};
  sizes.qwen = {"tiny", 64, 64, 8, 2};
  sizes.weights = 1 << 20;
  sizes.slab = 2 << 20;
  sizes.chunks = {16 << 10, 1 << 20};
  sizes.batches = {1, 4};
  sizes.shares = {0, 0.8};
  sizes.seconds = 0.01;
  return sizes;
}

void Report(Results* results, const std::string& what, double value, const std::string& unit) {
  std::printf("%-60s %10.4g %s\n", what.c_str(), value, unit.c_str());
  std::fflush(stdout);
  results->Add(what, value, unit);
}

void MeasureCopies(const CudaModuleApi& cuda, const Sizes& sizes, Results* results) {
  const std::unique_ptr<Backend> backend = NewBackend(cuda, {});
  const SharedBuffer shared = Get(backend->AllocateShared(sizes.slab));
  std::vector<double> rates;
  for (const uint64_t chunk : sizes.chunks) {
    CopyLoop loop(cuda, shared.fd, {shared.kind, shared.device, shared.bytes}, chunk);
    loop.Run(sizes.seconds);
    rates.push_back(loop.Run(sizes.seconds));
  }
  const double peak = *std::max_element(rates.begin(), rates.end());
  for (size_t i = 0; i < rates.size(); ++i) {
    Report(results, absl::StrCat("copies in chunks of ", sizes.chunks[i] >> 10, " KiB"), rates[i] * 1e-9,
           "GB/s");
    Report(results, absl::StrCat("share of the peak, chunks of ", sizes.chunks[i] >> 10, " KiB"),
           100 * rates[i] / peak, "%");
  }
}

// Measures kernels in this process and copies in another one: each alone, and both at once.
void MeasureOverlap(const CudaModuleApi& cuda, const Sizes& sizes, Results* results) {
  Kernels kernels(cuda, sizes.mixtral, 1, sizes.weights);
  const CudaDeviceFacts before = Get(cuda.facts());
  const std::unique_ptr<Backend> owner = NewBackend(cuda, {});
  const SharedBuffer shared = Get(owner->AllocateShared(sizes.slab));
  const CudaDeviceFacts with_slab = Get(cuda.facts());
  OtherProcess other(shared);
  const CudaDeviceFacts after = Get(cuda.facts());
  Report(results, "memory of the other process' context",
         (static_cast<double>(with_slab.free_bytes) - static_cast<double>(after.free_bytes)) / (1 << 20),
         "MiB");
  Report(results, "memory of this process' context and workspaces, others' included",
         static_cast<double>(before.total_bytes - before.free_bytes - sizes.weights) / (1 << 20), "MiB");
  double bytes = 0;
  const auto pass = [&] { return kernels.ProductSeconds(Encoding::kQ4, &bytes); };
  const double kernels_alone = pass();
  other.Begin(sizes.seconds);
  const double copies_alone = other.End();
  const double span = std::max(sizes.seconds, 20 * kernels_alone);
  other.Begin(span);
  std::vector<double> beside;
  for (const double end = Now() + 0.8 * span; Now() < end || beside.empty();) {
    beside.push_back(pass());
  }
  const double copies_beside = other.End();
  Report(results, "kernels beside another process' copies", 100 * kernels_alone / Median(beside), "%");
  Report(results, "copies beside another process' kernels", 100 * copies_beside / copies_alone, "%");
}

void MeasureProducts(const CudaModuleApi& cuda, const Sizes& sizes, Results* results) {
  Kernels kernels(cuda, sizes.mixtral, 1, sizes.weights);
  for (const auto& [encoding, word] : {std::pair{Encoding::kBf16, "bf16"},
                                       {Encoding::kF16, "f16"},
                                       {Encoding::kQ8, "q8"},
                                       {Encoding::kQ4, "q4"},
                                       {Encoding::kQ3, "q3"},
                                       {Encoding::kQ2, "q2"}}) {
    double bytes = 0;
    const double seconds = kernels.ProductSeconds(encoding, &bytes);
    Report(results,
           absl::StrCat("products of one token with ", word, " [", sizes.mixtral.hidden, ", ",
                        sizes.mixtral.hidden, "]"),
           bytes / seconds * 1e-9, "GB/s");
  }
}

// Measures one expert as in FloE's Table 1, with up in f16 and in q2.
void MeasureExpert(const CudaModuleApi& cuda, const Sizes& sizes, Results* results) {
  Shape one = sizes.mixtral;
  one.experts = 1;
  one.top_k = 1;
  Kernels kernels(cuda, one, 1, std::max(sizes.weights / 2, uint64_t{4} * one.width * one.hidden * 2));
  for (const auto& [up, word] : {std::pair{Encoding::kF16, "f16"}, {Encoding::kQ2, "q2"}}) {
    double dense = 0;
    for (const double share : {0.0, 0.5, 0.6, 0.7, 0.8, 0.9}) {
      const double seconds =
          kernels.LayerSeconds(1, up, Encoding::kF16, share == 0 ? 0 : kernels.ThresholdFor(up, share));
      dense = share == 0 ? seconds : dense;
      Report(results, absl::StrFormat("one expert, up %s, %.0f %% left out", word, 100 * share),
             seconds * 1e6, "us");
      Report(results,
             absl::StrFormat("one expert, up %s, %.0f %% left out: faster than all by", word, 100 * share),
             dense / seconds, "x");
    }
  }
}

void MeasureLayers(const CudaModuleApi& cuda, const Sizes& sizes, Results* results) {
  Kernels kernels(cuda, sizes.qwen, sizes.batches.back(), sizes.weights);
  for (const uint32_t batch : sizes.batches) {
    for (const double share : sizes.shares) {
      const float threshold = share == 0 ? 0 : kernels.ThresholdFor(Encoding::kQ4, share);
      Report(results, absl::StrFormat("layer of experts, %u tokens, %.0f %% left out", batch, 100 * share),
             kernels.LayerSeconds(batch, Encoding::kQ4, Encoding::kQ4, threshold) * 1e6, "us");
    }
  }
}

using Case = void (*)(const CudaModuleApi&, const Sizes&, Results*);
constexpr std::pair<const char*, Case> kCases[] = {{"copies", MeasureCopies},
                                                   {"overlap", MeasureOverlap},
                                                   {"products", MeasureProducts},
                                                   {"expert", MeasureExpert},
                                                   {"layers", MeasureLayers}};

int Main(int argc, char** argv) {
  if (IsCopyChild(argc, argv)) {
    return CopyChild(argv);
  }
  Results results("gpu_bench", &argc, argv);
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  const std::string wanted = argc > (tiny ? 2 : 1) ? argv[tiny ? 2 : 1] : "";
  const Sizes sizes = tiny ? TinySizes() : Sizes();
  const CudaModuleApi& cuda = *Get(LoadCudaModule());
  const CudaDeviceFacts facts = Get(cuda.facts());
  results.Of(absl::StrCat("Measured on ", facts.name));
  std::printf("%s, compute capability %u.%u, %lu of %lu MiB free\n", facts.name.c_str(),
              facts.capability / 10, facts.capability % 10, facts.free_bytes >> 20, facts.total_bytes >> 20);
  for (const auto& [name, run] : kCases) {
    if (absl::StrContains(name, wanted)) {
      run(cuda, sizes, &results);
    }
  }
  return results.Write(1) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
