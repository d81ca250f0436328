#include "bench/kernel_workloads.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/read_bandwidth.h"

namespace sluice::bench {
namespace {

constexpr uint32_t kMaxTokens = 512;
constexpr uint32_t kMaxHidden = 4096;
constexpr uint32_t kBlock = 64;

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

uint64_t StrideOf(const EncodingDescriptor& d, uint32_t cols) { return RoundStride(RowBytes(d, cols)); }

// Returns the encoding of down rows beside gate and up rows of `d`: block encodings have no weighted sums.
EncodingDescriptor DownOf(const EncodingDescriptor& d) {
  return IsBlockEncoding(d.encoding) ? MakeDescriptor(Encoding::kQ8) : d;
}

uint64_t ExpertBytes(const EncodingDescriptor& d, uint32_t hidden, uint32_t width) {
  return width * (2 * StrideOf(d, hidden) + StrideOf(DownOf(d), hidden));
}

template <class T>
T* Aligned(std::vector<T>& memory) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<T*>((place + 63) / 64 * 64);
}

}  // namespace

void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

double MeasureClock() {
  // A multiplication takes three cycles on every x86-64 CPU with AVX2, while some fold additions of
  // constants.
  constexpr int kRounds = 1000000;
  constexpr double kCycles = 3;
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    uint64_t x = 3;
    const double seconds = Seconds([&x] {
      for (int k = 0; k < kRounds; ++k) {
        asm volatile("imul %0, %0" : "+r"(x));
      }
    });
    best = std::max(best, kCycles * kRounds / seconds);
  }
  return best;
}

KernelBench::KernelBench(const KernelBenchOptions& options, const std::byte* weights, CpuIsa isa)
    : options_(options), weights_(weights), isa_(isa), coefficients_(kBlock) {
  BackendLimits limits;
  limits.max_tokens = kMaxTokens;
  limits.max_sequences = 1;
  limits.max_cols = limits.hidden = kMaxHidden;
  limits.heads = 1;
  limits.head_dim = 128;
  limits.max_context = 1;
  limits.experts = 128;
  limits.top_k = 8;
  limits.expert_width = 14336;
  auto kernels = cpu::ChooseKernels(isa);
  Check(kernels.status());
  table_ = *kernels;
  auto threads = cpu::ChooseThreads(options.threads);
  Check(threads.status());
  pool_ = std::make_unique<ThreadPool>(*threads);
  auto backend = CreateCpuBackend(limits, *threads, isa);
  Check(backend.status());
  backend_ = *std::move(backend);
  auto imported = backend_->Import({weights, options.size});
  Check(imported.status());
  imported_ = *imported;
  x_ = Activations(uint64_t{kMaxTokens} * kMaxHidden);
  y_ = Activations(uint64_t{kMaxTokens} * 8 * kMaxHidden);
  float* x = reinterpret_cast<float*>(backend_->HostWrite(x_, uint64_t{kMaxTokens} * kMaxHidden * 4));
  for (uint64_t i = 0; i < uint64_t{kMaxTokens} * kMaxHidden; ++i) {
    x[i] = static_cast<float>(i % 7) - 3.0f;
  }
  for (uint32_t j = 0; j < kBlock; ++j) {
    coefficients_[j] = static_cast<float>(j % 5) - 1.5f;
  }
  sums_.resize(*threads);
  scratch_.resize(*threads);
  for (uint32_t i = 0; i < *threads; ++i) {
    sums_[i].resize(kMaxHidden + 16);
    scratch_[i].resize(std::max(cpu::QuantDownWords(kMaxHidden), cpu::DownScratchFloats(kMaxHidden)) + 16);
  }
}

BufferRef KernelBench::Activations(uint64_t floats) {
  auto buffer = backend_->Allocate(floats * 4, BufferKind::kActivations);
  Check(buffer.status());
  return {*buffer, 0};
}

WeightView KernelBench::View(const EncodingDescriptor& d, uint64_t offset, uint32_t rows,
                             uint32_t cols) const {
  WeightView view;
  view.encoding = d;
  view.base = {imported_, offset};
  view.stride = StrideOf(d, cols);
  view.rows = rows;
  view.cols = cols;
  return view;
}

uint64_t KernelBench::NextPlace(uint64_t bytes) {
  place_ = place_ + bytes > options_.size ? 0 : place_;
  const uint64_t place = place_;
  place_ += bytes;
  return place;
}

double KernelBench::Base() {
  ReadBandwidthOptions options;
  options.threads = threads();
  options.isa = isa_;
  options.min_bytes = options_.pass_bytes;
  options.rounds = 1;
  const absl::Span<const std::byte> region(weights_ + NextPlace(options_.pass_bytes), options_.pass_bytes);
  auto base = MeasureReadBandwidth({&region, 1}, options);
  Check(base.status());
  return base->best;
}

Pass KernelBench::RowsPass(const EncodingDescriptor& d, uint32_t cols) {
  const uint64_t stride = StrideOf(d, cols);
  const uint32_t rows = static_cast<uint32_t>((16 << 20) / stride);
  const uint64_t calls = std::max<uint64_t>(options_.pass_bytes / (rows * stride), 1);
  const uint64_t place = NextPlace(calls * rows * stride);
  Pass pass;
  pass.bytes = static_cast<double>(calls * rows * stride);
  pass.seconds = Seconds([&] {
    backend_->BeginStep();
    for (uint64_t i = 0; i < calls; ++i) {
      MatMulPart part;
      part.weights = View(d, place + i * rows * stride, rows, cols);
      part.y = {y_, rows};
      MatMulArgs args;
      args.x = {x_, cols};
      args.tokens = 1;
      args.cols = cols;
      args.parts = {&part, 1};
      Check(backend_->queue().MatMul(args));
    }
    backend_->EndStep();
  });
  return pass;
}

void KernelBench::DownBlock(const EncodingDescriptor& d, uint32_t cols, const uint8_t* place, uint32_t worker,
                            cpu::RowFetch* fetch) {
  const uint64_t stride = StrideOf(d, cols);
  const uint8_t* w[kBlock];
  for (uint32_t j = 0; j < kBlock; ++j) {
    w[j] = place + j * stride;
  }
  const float* c = coefficients_.data();
  float* y = Aligned(sums_[worker]);
  if (IsQuantized(d.encoding)) {
    cpu::QuantDownCall down;
    down.shape = cpu::ShapeOf(d, cols);
    down.w = w;
    down.c = &c;
    down.y = &y;
    down.neurons = kBlock;
    down.tokens = 1;
    down.in_halves = table_->in_halves[cpu::QuantKindOf(d.encoding)];
    down.fetch = fetch;
    down.fetch_lines = static_cast<uint32_t>((stride + 63) / 64);
    down.scratch = Aligned(scratch_[worker]);
    table_->quant_down[cpu::QuantKindOf(d.encoding)](down);
    return;
  }
  cpu::DownCall down;
  down.w = w;
  down.c = &c;
  down.y = &y;
  down.neurons = kBlock;
  down.tokens = 1;
  down.cols = cols;
  down.prefetch = {cpu::kStreamAhead, 0, 0};
  down.scratch = reinterpret_cast<float*>(Aligned(scratch_[worker]));
  table_->down[cpu::RowKindOf(d.encoding)](down);
}

Pass KernelBench::DownPass(const EncodingDescriptor& d, uint32_t cols) {
  const uint64_t block_bytes = kBlock * StrideOf(d, cols);
  const uint32_t blocks = static_cast<uint32_t>(options_.pass_bytes / block_bytes);
  const uint8_t* place = reinterpret_cast<const uint8_t*>(weights_) + NextPlace(blocks * block_bytes);
  Pass pass;
  pass.bytes = static_cast<double>(blocks * block_bytes);
  pool_->BeginStep();
  pass.seconds = Seconds([&] {
    // Tiles of 32 blocks, each one stream.
    pool_->Run((blocks + 31) / 32, [&](uint32_t tile, uint32_t worker) {
      const uint32_t end = std::min(blocks, (tile + 1) * 32);
      cpu::RowFetch fetch;
      fetch.Clear(static_cast<uint32_t>(std::min<uint64_t>(tuning_.fetch_distance, block_bytes)));
      const auto add = [&](uint32_t b) {
        if (b < end && IsQuantized(d.encoding)) {
          const uint8_t* block = place + b * block_bytes;
          table_->in_halves[cpu::QuantKindOf(d.encoding)]
              ? fetch.AddStreams(block, block + block_bytes / 2, block_bytes / 2)
              : fetch.AddStream(block, block + block_bytes);
        }
      };
      add(tile * 32);
      fetch.Advance(128);
      for (uint32_t b = tile * 32; b < end; ++b) {
        add(b + 1);
        DownBlock(d, cols, place + b * block_bytes, worker, &fetch);
      }
    });
  });
  pool_->EndStep();
  return pass;
}

void KernelBench::RunExperts(const uint64_t* order, uint32_t experts, uint32_t tokens,
                             const EncodingDescriptor& d, uint32_t hidden, uint32_t width) {
  const uint64_t part_bytes = width * StrideOf(d, hidden);
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
    const uint64_t offset = order[e] * ExpertBytes(d, hidden, width);
    work[e].up = View(d, offset, width, hidden);
    work[e].gate = View(d, offset + part_bytes, width, hidden);
    work[e].down = View(DownOf(d), offset + 2 * part_bytes, width, hidden);
    work[e].rows = rows;
    work[e].slots = absl::MakeSpan(slots).subspan(uint64_t{e} * tokens, tokens);
  }
  MoeExpertsArgs args;
  args.x = {x_, hidden};
  args.tokens = tokens;
  args.hidden = hidden;
  args.experts = work;
  args.y = {y_, hidden};
  args.slots = experts * tokens;
  Check(backend_->queue().MoeExperts(args));
}

Pass KernelBench::ExpertPass(const KernelShape& shape, const EncodingDescriptor& d,
                             const std::vector<uint64_t>& order, uint64_t* next) {
  const uint64_t expert_bytes = ExpertBytes(d, shape.hidden, shape.width);
  const uint64_t layer = std::min<uint64_t>(shape.top_k, order.size());
  const uint64_t layers = std::max<uint64_t>(options_.pass_bytes / (layer * expert_bytes), 1);
  Pass pass;
  pass.bytes = static_cast<double>(layers * layer * expert_bytes);
  pass.seconds = Seconds([&] {
    backend_->BeginStep();
    for (uint64_t i = 0; i < layers; ++i) {
      *next = *next + layer > order.size() ? 0 : *next;
      RunExperts(&order[*next], static_cast<uint32_t>(layer), 1, d, shape.hidden, shape.width);
      *next += layer;
    }
    backend_->EndStep();
  });
  return pass;
}

// Times rows or blocks within 200 KiB, repeatedly.
double KernelBench::CachedSpeed(const EncodingDescriptor& d, uint32_t cols, bool down) {
  const uint64_t stride = StrideOf(d, cols);
  const uint8_t* place = reinterpret_cast<const uint8_t*>(weights_);
  const uint32_t rows = down ? kBlock : static_cast<uint32_t>((200 << 10) / stride);
  std::vector<const uint8_t*> w(rows);
  for (uint32_t r = 0; r < rows; ++r) {
    w[r] = place + r * stride;
  }
  std::vector<int8_t> codes(cols + cpu::kCodeAlign + 64);
  std::vector<float> scales(cols / 16 + 16);
  std::vector<float> sums(cols / 16 + 16);
  const float* x = reinterpret_cast<const float*>(backend_->HostRead(x_, cols * 4));
  std::vector<int8_t> woven(3 * codes.size() + 64);
  const cpu::QuantRow row{Aligned(codes), scales.data(), sums.data(), Aligned(woven)};
  table_->quantize({x, cols, d.group, Aligned(codes), scales.data(), sums.data(), Aligned(woven)});
  std::vector<float> outputs(rows);
  float* y = outputs.data();
  cpu::QuantDotCall dot;
  dot.shape = cpu::ShapeOf(d, cols);
  dot.w = w.data();
  dot.x = &row;
  dot.y = &y;
  dot.rows = rows;
  dot.tokens = 1;
  cpu::RowFetch fetch;  // fetches nothing
  fetch.Clear(tuning_.fetch_distance);
  double best = 0;
  for (int i = 0; i < 200; ++i) {
    const double seconds = Seconds([&] {
      down ? DownBlock(d, cols, place, 0, &fetch) : table_->quant_dot[cpu::QuantKindOf(d.encoding)](dot);
    });
    best = std::max(best, static_cast<double>(rows * stride) / seconds);
  }
  return best;
}

KernelWorkload KernelBench::Workload(const KernelShape& shape, const KernelEncoding& encoding,
                                     const std::string& kind) {
  const EncodingDescriptor d = encoding.descriptor;
  KernelWorkload out{shape.name, encoding.name, kind, nullptr, nullptr};
  if (kind == "rows") {
    out.pass = [=, this] { return RowsPass(d, shape.hidden); };
  } else if (kind == "down") {
    out.pass = [=, this] { return DownPass(DownOf(d), shape.hidden); };
  } else {
    const uint64_t experts = std::max<uint64_t>(options_.size / ExpertBytes(d, shape.hidden, shape.width), 1);
    std::vector<uint64_t> order(experts);
    for (uint64_t i = 0; i < experts; ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    out.pass = [=, this, next = uint64_t{0}]() mutable { return ExpertPass(shape, d, order, &next); };
  }
  if (kind != "expert" && IsQuantized(d.encoding)) {
    const bool down = kind == "down";
    out.cached = [=, this] { return CachedSpeed(down ? DownOf(d) : d, shape.hidden, down); };
  }
  return out;
}

double KernelBench::PrefillMatMul(const KernelEncoding& encoding, uint32_t rounds) {
  constexpr uint32_t kSide = 2048;
  double best = 0;
  backend_->BeginStep();
  for (uint32_t i = 0; i < rounds; ++i) {
    MatMulPart part;
    part.weights = View(encoding.descriptor, 0, kSide, kSide);
    part.y = {y_, kSide};
    MatMulArgs args;
    args.x = {x_, kSide};
    args.tokens = kMaxTokens;
    args.cols = kSide;
    args.parts = {&part, 1};
    const double seconds = Seconds([&] { Check(backend_->queue().MatMul(args)); });
    best = std::max(best, double{kMaxTokens} * kSide * kSide / seconds);
  }
  backend_->EndStep();
  return best;
}

double KernelBench::PrefillExperts(const KernelEncoding& encoding, uint32_t rounds) {
  const uint64_t order[] = {3, 1, 2, 0};
  double best = 0;
  backend_->BeginStep();
  for (uint32_t i = 0; i < rounds; ++i) {
    const double seconds = Seconds([&] { RunExperts(order, 4, 64, encoding.descriptor, 2048, 768); });
    best = std::max(best, 4.0 * 64 * 3 * 768 * 2048 / seconds);
  }
  backend_->EndStep();
  return best;
}

void KernelBench::PrintForkJoin() {
  constexpr int kRegions = 20000;
  pool_->BeginStep();
  const double seconds = Seconds([&] {
    for (int i = 0; i < kRegions; ++i) {
      pool_->Run(threads(), [](uint32_t, uint32_t) {});
    }
  });
  pool_->EndStep();
  const BackendCounters counters = backend_->Counters();
  const double regions = static_cast<double>(std::max<uint64_t>(counters.fork_joins, 1));
  std::printf(
      "\nempty fork-join of %u threads: %.2f us; the workloads' join wait: %.1f us of %.1f us a region\n",
      threads(), seconds / kRegions * 1e6, counters.join_wait_seconds / regions * 1e6,
      counters.region_seconds / regions * 1e6);
}

}  // namespace sluice::bench
