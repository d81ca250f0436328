#include "bench/sparse_layers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "common/base/status.h"
#include "kernels/cpu/read_bandwidth.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxBenchHidden = 4096;
constexpr uint32_t kMaxBenchWidth = 14336;
constexpr uint32_t kMaxBenchTopK = 8;

// Fills the mapping with 16-bit values that are small and finite as bf16, as f16 and as codes.
void Fill(std::byte* mapping, uint64_t bytes) {
  std::vector<uint16_t> pattern((1 << 20) + 3083);  // not a multiple of a row, so rows differ
  std::mt19937 random(1);
  for (uint16_t& value : pattern) {
    value = static_cast<uint16_t>(0x3c00u | (random() & 0x80ffu));
  }
  const uint64_t step = pattern.size() * 2;
  for (uint64_t at = 0; at < bytes; at += step) {
    std::memcpy(mapping + at, pattern.data(), std::min(step, bytes - at));
  }
}

// Returns the average bytes of the cache lines that one row touches.
double LineBytes(const EncodingDescriptor& d, uint32_t cols) {
  const uint64_t bytes = RowBytes(d, cols);
  const uint64_t stride = RoundStride(bytes);
  double lines = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t start = i * stride % 64;
    lines += static_cast<double>((start + bytes + 63) / 64) / 4;
  }
  return lines * 64;
}

}  // namespace

void CheckOk(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "sparse_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

SparseLayers::SparseLayers(uint64_t bytes, uint32_t threads, CpuIsa isa, uint32_t max_tokens)
    : bytes_(bytes), threads_(threads), isa_(isa), max_tokens_(max_tokens) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    CheckOk(absl::ResourceExhaustedError("no memory for the weights; try --size"));
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  mapping_ = static_cast<std::byte*>(memory);
  Fill(mapping_, bytes);
  BackendLimits limits;
  limits.max_tokens = max_tokens;
  limits.max_sequences = 1;
  limits.max_cols = limits.hidden = kMaxBenchHidden;
  limits.heads = 1;
  limits.head_dim = 128;
  limits.max_context = 1;
  limits.experts = 128;
  limits.top_k = kMaxBenchTopK;
  limits.expert_width = kMaxBenchWidth;
  auto backend = CreateCpuBackend(limits, threads, isa);
  CheckOk(backend.status());
  backend_ = *std::move(backend);
  auto imported = backend_->Import({mapping_, bytes});
  CheckOk(imported.status());
  imported_ = *imported;
  const auto allocate = [&](uint64_t floats) {
    auto buffer = backend_->Allocate(floats * 4, BufferKind::kActivations);
    CheckOk(buffer.status());
    return BufferRef{*buffer, 0};
  };
  x_ = allocate(uint64_t{max_tokens} * kMaxBenchHidden);
  y_ = allocate(uint64_t{max_tokens} * kMaxBenchTopK * kMaxBenchHidden);
  active_ = allocate(uint64_t{max_tokens} * kMaxBenchTopK);
}

SparseLayers::~SparseLayers() {
  CheckOk(backend_->Free(imported_));
  munmap(mapping_, bytes_);
}

double SparseLayers::MeasureBandwidth() const {
  ReadBandwidthOptions options;
  options.threads = threads_;
  options.isa = isa_;
  options.min_bytes = bytes_;
  const absl::Span<const std::byte> region(mapping_, bytes_);
  auto base = MeasureReadBandwidth({&region, 1}, options);
  CheckOk(base.status());
  return base->best;
}

WeightView SparseLayers::View(const EncodingDescriptor& d, uint64_t offset) const {
  WeightView view;
  view.encoding = d;
  view.base = {imported_, offset};
  view.stride = RoundStride(RowBytes(d, shape_.hidden));
  view.rows = shape_.width;
  view.cols = shape_.hidden;
  return view;
}

absl::Status SparseLayers::Use(const LayerShape& shape, const ExpertKind& kind) {
  shape_ = shape;
  kind_ = kind;
  const EncodingDescriptor* parts[] = {&kind.up, &kind.gate, &kind.down};
  for (int i = 0; i < 3; ++i) {
    part_bytes_[i] = shape.width * RoundStride(RowBytes(*parts[i], shape.hidden));
  }
  work_.reserve(shape.experts);
  return ScaleActivations();
}

absl::Status SparseLayers::ScaleActivations() {
  float* x = reinterpret_cast<float*>(backend_->HostWrite(x_, uint64_t{max_tokens_} * kMaxBenchHidden * 4));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (uint64_t i = 0; i < uint64_t{max_tokens_} * shape_.hidden; ++i) {
    x[i] = normal(random);
  }
  WeightView rows = View(kind_.up, 0);
  rows.rows = std::min(256u, shape_.width);
  const MatMulPart part{rows, {y_, rows.rows}, {}};
  const Rows input{x_, shape_.hidden};
  MatMulArgs args;
  args.x = input;
  args.tokens = 1;
  args.cols = shape_.hidden;
  args.parts = {&part, 1};
  RETURN_IF_ERROR(backend_->queue().MatMul(args));
  const float* dots = reinterpret_cast<const float*>(backend_->HostRead(y_, rows.rows * 4));
  const float squares = std::inner_product(dots, dots + rows.rows, dots, 0.0f);
  const float scale = 1.5f / std::sqrt(squares / static_cast<float>(rows.rows));
  for (uint64_t i = 0; i < uint64_t{max_tokens_} * shape_.hidden; ++i) {
    x[i] *= scale;
  }
  return absl::OkStatus();
}

uint32_t SparseLayers::Layers(uint32_t used) const {
  const uint64_t expert = part_bytes_[0] + part_bytes_[1] + part_bytes_[2];
  return static_cast<uint32_t>(bytes_ / expert / used);
}

Routing SparseLayers::RouteOne() const {
  Routing r;
  r.tokens = 1;
  r.slot_count = shape_.top_k;
  for (uint32_t e = 0; e < shape_.top_k; ++e) {
    r.rows.push_back({0});
    r.slots.push_back({e});
  }
  return r;
}

Routing SparseLayers::RouteRandomly(uint32_t tokens, uint64_t seed) const {
  Routing r;
  r.tokens = tokens;
  r.slot_count = tokens * shape_.top_k;
  r.rows.resize(shape_.experts);
  r.slots.resize(shape_.experts);
  std::mt19937_64 random(seed);
  std::vector<uint32_t> order(shape_.experts);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t t = 0; t < tokens; ++t) {
    std::shuffle(order.begin(), order.end(), random);
    for (uint32_t k = 0; k < shape_.top_k; ++k) {
      r.rows[order[k]].push_back(t);
      r.slots[order[k]].push_back(t * shape_.top_k + k);
    }
  }
  std::erase_if(r.rows, [](const auto& rows) { return rows.empty(); });
  std::erase_if(r.slots, [](const auto& slots) { return slots.empty(); });
  return r;
}

uint64_t SparseLayers::Run(uint32_t layer, const Routing& routing, const Masking& masking) {
  const uint64_t expert_bytes = part_bytes_[0] + part_bytes_[1] + part_bytes_[2];
  const uint64_t experts = bytes_ / expert_bytes;
  const uint64_t used = routing.rows.size();
  work_.clear();
  for (uint64_t e = 0; e < used; ++e) {
    // Steps of a prime visit the experts of the mapping in an order that jumps.
    const uint64_t offset = (layer * used + e) * 7919 % experts * expert_bytes;
    ExpertWork work;
    work.up = View(kind_.up, offset);
    work.gate = View(kind_.gate, offset + part_bytes_[0]);
    work.down = View(kind_.down, offset + part_bytes_[0] + part_bytes_[1]);
    work.rows = routing.rows[e];
    work.slots = routing.slots[e];
    work.sparsity = masking.order;
    work.threshold = masking.threshold;
    work_.push_back(work);
  }
  MoeExpertsArgs args;
  args.x = {x_, shape_.hidden};
  args.tokens = routing.tokens;
  args.hidden = shape_.hidden;
  args.experts = work_;
  args.y = {y_, shape_.hidden};
  args.slots = routing.slot_count;
  args.active = active_;
  CheckOk(backend_->queue().MoeExperts(args));
  const uint32_t* active = reinterpret_cast<const uint32_t*>(backend_->HostRead(active_, args.slots * 4));
  return std::accumulate(active, active + args.slots, uint64_t{0});
}

float SparseLayers::ThresholdFor(SparsityOrder order, double kept) {
  const Routing routing = RouteOne();
  const uint64_t wanted =
      static_cast<uint64_t>(kept * static_cast<double>(shape_.width) * static_cast<double>(shape_.top_k));
  float low = 0;
  float high = 100;
  for (int i = 0; i < 24; ++i) {
    const float middle = (low + high) / 2;
    (Run(0, routing, {order, middle}) > wanted ? low : high) = middle;
  }
  return high;
}

SparseLayers::Bytes SparseLayers::BytesOf(SparsityOrder order) const {
  const auto whole = [&](const EncodingDescriptor& d) {
    return static_cast<double>(shape_.width * RoundStride(RowBytes(d, shape_.hidden)));
  };
  const auto row = [&](const EncodingDescriptor& d) { return LineBytes(d, shape_.hidden); };
  switch (order) {
    case SparsityOrder::kUp:
      return {whole(kind_.up), row(kind_.gate) + row(kind_.down)};
    case SparsityOrder::kGate:
      return {whole(kind_.gate), row(kind_.up) + row(kind_.down)};
    case SparsityOrder::kProduct:
      return {whole(kind_.up) + whole(kind_.gate), row(kind_.down)};
    case SparsityOrder::kNone:
      break;
  }
  return {whole(kind_.up) + whole(kind_.gate) + whole(kind_.down), 0};
}

}  // namespace sluice
