#include "bench/cuda/counted.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/half.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device/half_rows.h"
#include "kernels/ops.h"
#include "pack/row_layout.h"

namespace sluice::bench {
namespace {

constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kNeuronsOfAnExpert = 64;  // only decides where kernels are counted, not their work

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

// Device cuda on a new fake, and its data.
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
    limits.max_context = model.positions;
    limits.experts = model.experts;
    limits.top_k = model.top_k;
    limits.expert_width = model.width;
    backend_ = Get(CreateCudaBackend(limits));
  }

  Queue& queue() { return backend_->queue(); }
  Backend& backend() { return *backend_; }
  BufferRef Zeros(uint64_t bytes) { return {Get(backend_->Allocate(bytes, BufferKind::kActivations)), 0}; }
  Rows Normals(uint32_t cols) {
    std::vector<float> values(cols);
    std::normal_distribution<float> normal;
    std::generate(values.begin(), values.end(), [&] { return normal(random_); });
    const BufferRef ref = Zeros(4 * cols);
    Check(queue().Upload(values.data(), 4 * cols, ref));
    return {ref, cols};
  }
  // Fills a matrix with random codes, scales of one size and zeros in the middle of the range. Uses
  // registered host memory, for whose bytes the interpreter keeps no history.
  WeightView Matrix(Encoding encoding, uint32_t rows, uint32_t cols) {
    WeightView view;
    view.encoding = MakeDescriptor(encoding);
    view.rows = rows;
    view.cols = cols;
    view.stride = RoundStride(RowBytes(view.encoding, cols));
    const uint64_t bytes = rows * view.stride;
    std::vector<uint64_t>& words = memory_.emplace_back(bytes / 8 + 4);
    // bf16 values below 2: neither infinite nor NaN.
    const uint64_t bits = encoding == Encoding::kBf16 ? 0xbfffbfffbfffbfff : ~uint64_t{0};
    uint8_t* base = reinterpret_cast<uint8_t*>(words.data());
    base += (32 - reinterpret_cast<uintptr_t>(base) % 32) % 32;
    std::generate_n(reinterpret_cast<uint64_t*>(base), bytes / 8, [&] { return random_() & bits; });
    constexpr uint8_t kExponent = 120;
    const uint16_t scale = FloatToF16(0.01f);
    const uint16_t zero = FloatToF16(static_cast<float>((1u << BitsOf(encoding)) - 1) / 2);
    const bool plain = encoding <= Encoding::kF32;
    const uint64_t groups = plain ? 0 : GroupsPerRow(view.encoding, cols);
    for (uint32_t r = 0; r < rows; ++r) {
      uint8_t* const scales = base + r * view.stride + ScaleOffset(view.encoding, cols);
      if (encoding == Encoding::kMxfp4) {  // exponents; it has no zeros
        std::fill_n(scales, groups, kExponent);
        continue;
      }
      for (uint64_t g = 0; g < groups; ++g) {
        std::memcpy(scales + 2 * g, &scale, 2);
        std::memcpy(base + r * view.stride + ZeroOffset(view.encoding, cols) + 2 * g, &zero, 2);
      }
    }
    view.base = {Get(backend_->Import({reinterpret_cast<const std::byte*>(base), bytes})), 0};
    return view;
  }
  KvView Cache(const Model& model) {
    KvView kv;
    kv.type = KvType::kF16;
    kv.kv_heads = model.kv_heads;
    kv.head_dim = kHeadDim;
    kv.pages = model.positions / kPageTokens;
    kv.page_stride = KvPageBytes(kv.type, kv.kv_heads, kv.head_dim);
    kv.k = Zeros(kv.pages * kv.page_stride);
    kv.v = Zeros(kv.pages * kv.page_stride);
    return kv;
  }
  std::vector<float> Floats(BufferRef ref, uint64_t count) {
    std::vector<float> values(count);
    Check(queue().Download(ref, 4 * count, values.data()));
    Check(queue().Wait(queue().Record()));
    return values;
  }
  // Returns the launches since the last call.
  std::vector<cuda_fake::KernelCounts> TakeLaunches() {
    Check(queue().Wait(queue().Record()));
    std::vector<cuda_fake::KernelCounts> launches = cuda_fake::TakeKernelCounts();
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

std::vector<uint32_t> PagesOf(const KvView& kv) {
  std::vector<uint32_t> pages(kv.pages);
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

}  // namespace

Counted CountProduct(const Model& model, Encoding encoding, int capability) {
  Bench bench(model, capability);
  const uint32_t rows = model.rows;
  const WeightView weights = bench.Matrix(encoding, rows, model.hidden);
  const Rows x = bench.Normals(model.hidden);
  const MatMulPart part = {weights, {bench.Zeros(4 * rows), rows}, {}, 1.0f};
  Check(bench.queue().MatMul({.x = x, .tokens = 1, .cols = model.hidden, .parts = {&part, 1}}));
  return {double{1} * rows * static_cast<double>(RowBytes(weights.encoding, model.hidden)),
          bench.TakeLaunches()};
}

Counted CountExpand(const Model& model, Encoding encoding, int capability) {
  cuda_fake::ResetFake({.memory_bytes = uint64_t{1} << 30, .capability = capability, .counts = true});
  const EncodingDescriptor d = MakeDescriptor(encoding);
  const uint64_t stride = RoundStride(RowBytes(d, model.hidden));
  const uint64_t expanded = 2 * uint64_t{model.hidden};
  // Rows of zeros, their copies, and the copies' scales: the work does not depend on values.
  uint8_t* memory = nullptr;
  const uint64_t bytes = model.rows * (stride + expanded + 4);
  if (cudaMalloc(reinterpret_cast<void**>(&memory), bytes) != cudaSuccess ||
      cudaMemset(memory, 0, bytes) != cudaSuccess) {
    Check(absl::InternalError("no memory on the fake device"));
  }
  cuda::ExpandLaunch launch;
  launch.weights = cuda::MatrixOf({d, memory, stride, model.rows, model.hidden});
  launch.rows = model.rows;
  launch.padded_cols = model.hidden;
  launch.y = reinterpret_cast<uint16_t*>(memory + model.rows * stride);
  launch.scales = reinterpret_cast<float*>(memory + model.rows * (stride + expanded));
  cuda::Launcher launcher;
  if (cuda::EnqueueExpand(launch, launcher) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
    Check(absl::InternalError("the expansion failed"));
  }
  return {static_cast<double>(model.rows) * static_cast<double>(RowBytes(d, model.hidden) + expanded),
          cuda_fake::TakeKernelCounts()};
}

Counted CountSparseExperts(const Model& model, Encoding encoding, int capability) {
  constexpr double kLeftOut = 0.8;
  Bench bench(model, capability);
  const Rows x = bench.Normals(model.hidden);
  const uint32_t row = 0;
  std::vector<uint32_t> slots(model.top_k);
  std::vector<ExpertWork> experts(model.top_k);
  for (uint32_t e = 0; e < model.top_k; ++e) {
    slots[e] = e;
    experts[e].up = bench.Matrix(encoding, model.width, model.hidden);
    experts[e].gate = bench.Matrix(encoding, model.width, model.hidden);
    experts[e].down = bench.Matrix(encoding, model.width, model.hidden);
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
    counted.bytes +=
        row_bytes * (model.width + 2.0 * neurons);  // all of up; of gate and down the active neurons
  }
  return counted;
}

Counted CountAttention(const Model& model, int capability) {
  Bench bench(model, capability);
  const KvView kv = bench.Cache(model);
  const std::vector<uint32_t> pages = PagesOf(kv);
  const SequenceRows sequence = {0, 1, model.positions - 1, pages};
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

uint64_t CountLayerKernels(const Model& model, int capability) {
  Bench bench(model, capability);
  Queue& queue = bench.queue();
  const uint32_t hidden = model.hidden;
  const uint32_t q_cols = model.heads * kHeadDim;
  const uint32_t kv_cols = model.kv_heads * kHeadDim;
  const Rows x = bench.Normals(hidden);
  const NormSpec norm = {bench.Normals(hidden).base};
  const auto rows = [&](uint32_t cols) { return Rows{bench.Zeros(4 * cols), cols}; };
  const Rows q = rows(q_cols), k = rows(kv_cols), v = rows(kv_cols), out = rows(q_cols);
  const MatMulPart qkv[] = {{bench.Matrix(Encoding::kQ4, q_cols, hidden), q, {}},
                            {bench.Matrix(Encoding::kQ4, kv_cols, hidden), k, {}},
                            {bench.Matrix(Encoding::kQ4, kv_cols, hidden), v, {}}};
  const MatMulPart o[] = {{bench.Matrix(Encoding::kQ4, hidden, q_cols), x, {}}};
  const Rows normed = rows(hidden), logits = rows(model.experts);
  const MatMulPart router[] = {{bench.Matrix(Encoding::kF32, model.experts, hidden), logits, {}}};
  std::vector<ExpertWork> experts(model.experts);
  for (ExpertWork& expert : experts) {
    expert.up = bench.Matrix(Encoding::kQ4, kNeuronsOfAnExpert, hidden);
    expert.gate = expert.up;
    expert.down = expert.up;
  }
  KvView kv = bench.Cache(model);
  const std::vector<uint32_t> pages = PagesOf(kv);
  const SequenceRows sequence = {0, 1, model.positions - 1, pages};
  const BufferRef ids = bench.Zeros(4 * model.top_k), weights = bench.Zeros(4 * model.top_k);
  const Rows y = {bench.Zeros(uint64_t{4} * model.top_k * hidden), hidden};
  bench.TakeLaunches();
  Check(queue.MatMul({.x = x, .tokens = 1, .cols = hidden, .norm = norm, .parts = qkv}));
  Check(queue.RopeKvWrite(
      {.q = q, .k = k, .v = v, .tokens = 1, .heads = model.heads, .sequences = {&sequence, 1}, .kv = kv}));
  Check(queue.Attention({.q = q,
                         .tokens = 1,
                         .heads = model.heads,
                         .scale = 0.088f,
                         .sequences = {&sequence, 1},
                         .kv = kv,
                         .out = out}));
  Check(queue.MatMul({.x = out, .tokens = 1, .cols = q_cols, .parts = o, .residual = x}));
  Check(queue.Norm({.x = x, .tokens = 1, .cols = hidden, .norm = norm, .y = normed}));
  Check(queue.MatMul({.x = normed, .tokens = 1, .cols = hidden, .parts = router}));
  Check(queue.Router({.logits = logits,
                      .tokens = 1,
                      .experts = model.experts,
                      .top_k = model.top_k,
                      .ids = ids,
                      .weights = weights}));
  Check(queue.RoutedExperts({.x = normed,
                             .tokens = 1,
                             .hidden = hidden,
                             .ids = ids,
                             .weights = weights,
                             .ranks = model.top_k,
                             .experts = experts,
                             .y = y}));
  Check(queue.Combine({.y = y,
                       .weights = weights,
                       .tokens = 1,
                       .top_k = model.top_k,
                       .hidden = hidden,
                       .residual = x,
                       .out = x}));
  return bench.TakeLaunches().size();
}

}  // namespace sluice::bench
