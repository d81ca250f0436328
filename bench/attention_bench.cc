// Bytes that one decoded token's attention reads, as a share of the read bandwidth, measured in one run over
// one cache.
//
// Workloads, one token over a context of 8192 positions, layer after layer through the whole cache:
//   grouped   32 heads on 8 KV heads of 128, f16 and q8; with sinks too
//   latent    16 and 128 heads over rows of 512 + 64 (DeepSeek-V2-Lite, -V3), f16 and q8: K rows count once
//   delta     the gated delta rule, 32 heads of 128 x 128: its state counts as read once and written once
//
// attention_bench [--threads N] [--rounds N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/read_bandwidth.h"
#include "kernels/ops.h"

namespace sluice {
namespace {

constexpr uint32_t kContext = 8192;
constexpr uint64_t kCacheBytes = uint64_t{512} << 20;

void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "attention_bench: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

template <class T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

struct Shape {
  const char* name;
  KvType type;
  uint32_t heads, kv_heads, head_dim, value_dim;
  bool sinks;
};

class Bench {
 public:
  Bench(uint32_t threads, uint32_t rounds) : threads_(threads), rounds_(rounds) {
    BackendLimits limits;
    limits.max_tokens = 1;
    limits.max_sequences = 1;
    limits.max_cols = limits.hidden = 8192;
    limits.heads = 128;
    limits.head_dim = 576;
    limits.max_context = kContext;
    backend_ = Value(CreateCpuBackend(limits, threads));
    cache_ = {Value(backend_->Allocate(kCacheBytes, BufferKind::kKvCache)), 0};
    rows_ = {Value(backend_->Allocate(4 * 128 * 576 * 4, BufferKind::kActivations)), 0};
    // Codes and halves of small size everywhere: their values do not matter, denormals would.
    std::vector<uint16_t> pattern(1 << 20, 0x3001);
    for (uint64_t at = 0; at < kCacheBytes; at += pattern.size() * 2) {
      Check(backend_->queue().Upload(pattern.data(), pattern.size() * 2, cache_ + at));
    }
    pages_.resize(kContext / kPageTokens);
    std::iota(pages_.begin(), pages_.end(), 0u);
  }

  void Run() {
    ReadBandwidthOptions options;
    options.threads = threads_;
    options.min_bytes = kCacheBytes;
    const absl::Span<const std::byte> region(backend_->HostRead(cache_, kCacheBytes), kCacheBytes);
    const double base = Value(MeasureReadBandwidth({&region, 1}, options)).best;
    std::printf("%s, read bandwidth %.2f GB/s\n", backend_->Describe().c_str(), base / 1e9);
    for (const Shape& shape : {Shape{"grouped f16", KvType::kF16, 32, 8, 128, 128, false},
                               Shape{"grouped f16, sinks", KvType::kF16, 32, 8, 128, 128, true},
                               Shape{"grouped q8", KvType::kQ8, 32, 8, 128, 128, false},
                               Shape{"latent 16 heads f16", KvType::kF16, 16, 1, 576, 512, false},
                               Shape{"latent 16 heads q8", KvType::kQ8, 16, 1, 576, 512, false},
                               Shape{"latent 128 heads f16", KvType::kF16, 128, 1, 576, 512, false}}) {
      const uint64_t bytes =
          kContext / kPageTokens * KvPairBytes(shape.type, shape.kv_heads, shape.head_dim, shape.value_dim);
      Print(shape.name, bytes, base, [&](uint64_t at) { Attend(shape, at); });
    }
    Print("delta 32 heads", uint64_t{2} * 32 * 128 * 128 * 4, base, [&](uint64_t at) { Delta(at); });
  }

 private:
  // `pass` over the cache, each call on other `bytes` of it.
  void Print(const char* name, uint64_t bytes, double base, const std::function<void(uint64_t)>& pass) {
    double best = 0;
    for (uint32_t round = 0; round < rounds_; ++round) {
      const auto start = std::chrono::steady_clock::now();
      uint64_t at = 0;
      backend_->BeginStep();
      for (; at + bytes <= kCacheBytes; at += bytes) {
        pass(at);
      }
      backend_->EndStep();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, static_cast<double>(at) / seconds.count());
    }
    std::printf("%-24s %8.2f GB/s %6.1f%%\n", name, best / 1e9, 100 * best / base);
  }

  void Attend(const Shape& shape, uint64_t at) {
    const SequenceRows sequence{0, 1, kContext - 1, pages_};
    KvView kv;
    kv.type = shape.type;
    kv.page_stride = KvPageBytes(shape.type, shape.kv_heads, shape.head_dim);
    kv.pages = static_cast<uint32_t>(pages_.size());
    kv.kv_heads = shape.kv_heads;
    kv.head_dim = shape.head_dim;
    kv.value_dim = shape.value_dim;
    kv.k = cache_ + at;
    kv.v = shape.value_dim == shape.head_dim ? kv.k + kv.pages * kv.page_stride : kv.k;
    Check(backend_->queue().Attention({.q = {rows_, uint64_t{shape.heads} * shape.head_dim},
                                       .tokens = 1,
                                       .heads = shape.heads,
                                       .scale = 0.1f,
                                       .sinks = shape.sinks ? rows_ : BufferRef{},
                                       .sequences = {&sequence, 1},
                                       .kv = kv,
                                       .out = {rows_ + 2 * 128 * 576 * 4, 128 * 576}}));
  }

  void Delta(uint64_t at) {
    const DeltaConfig shape{
        .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
    const SequenceRows sequence{0, 1, 1, {}};
    const uint32_t from = 0;
    const uint32_t to = 1;
    // The slots lie so that the second state of a call is the first of the next.
    DeltaStateView state{cache_ + at / 2, 0, 2};
    state.slot_stride = uint64_t{32} * 128 * 128 * 4 + 3 * 8192 * 4;
    Check(backend_->queue().GatedDelta({.qkv = {rows_, 8192},
                                        .z = {rows_, 4096},
                                        .beta = {rows_, 32},
                                        .decay = {rows_, 32},
                                        .tokens = 1,
                                        .shape = shape,
                                        .conv = rows_,
                                        .a_log = rows_,
                                        .dt_bias = rows_,
                                        .norm = {rows_},
                                        .sequences = {&sequence, 1},
                                        .from = {&from, 1},
                                        .to = {&to, 1},
                                        .state = state,
                                        .out = {rows_ + 2 * 128 * 576 * 4, 4096}}));
  }

  const uint32_t threads_;
  const uint32_t rounds_;
  std::unique_ptr<Backend> backend_;
  BufferRef cache_, rows_;
  std::vector<uint32_t> pages_;
};

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  uint32_t threads = 1;
  uint32_t rounds = 3;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const uint32_t number = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (flag == "--threads") {
      threads = number;
    } else if (flag == "--rounds" && number > 0) {
      rounds = number;
    } else {
      std::fprintf(stderr, "usage: attention_bench [--threads N] [--rounds N]\n");
      return 2;
    }
  }
  sluice::Bench(threads, rounds).Run();
  return 0;
}
