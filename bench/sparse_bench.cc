// Time saved by masks: time of a layer's experts at several sparsities relative to the time in which this
// machine reads the touched bytes, measured in the same run over the same mapping.
//
//   masks   one token, all routed experts of a layer in one region, by order, encoding and sparsity. `x` is
//           time / (bytes of whole cache lines touched / bandwidth); target: at most 1.25 (bf16, q8), 1.4
//           (q4) or 1.8 (q3, q2), plus 3 us where the bytes take less than 20 us.
//   floe    FloE's Table 1: one Mixtral expert, time at 0 % over time at each sparsity, with the paper's.
//   intra   intra-expert's table: MoE layer speed-up by sparsity and batch size, with the switch that the
//           start-up profile finds; `paired` is the median of sparse time over dense time, run in turns.
//
// sparse_bench [--size BYTES] [--threads N] [--isa best|avx2|avx2vnni|avx512] [--rounds N]
//              [--only masks|floe|intra] [--kinds bf16,q8,q4,q3,q2,floe,corm] [--shapes mixtral,qwen3]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/results.h"
#include "bench/sparse_layers.h"
#include "kernels/sparse_profile.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

struct Options {
  uint64_t size = uint64_t{4} << 30;
  uint32_t threads = 0;
  CpuIsa isa = CpuIsa::kBest;
  uint32_t rounds = 5;
  std::string only;
  std::string kinds = "bf16,q8,q4,q3,q2,floe,corm";
  std::string shapes = "mixtral,qwen3";
};

constexpr uint32_t kMaxTokens = 128;
const LayerShape kShapes[] = {{"mixtral", 4096, 14336, 8, 2}, {"qwen3", 2048, 768, 128, 8}};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool Has(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

struct KindMark {
  ExpertKind kind;
  double mark = 0;
};

std::vector<KindMark> Kinds(const std::string& wanted) {
  const EncodingDescriptor bf16 = MakeDescriptor(Encoding::kBf16);
  const EncodingDescriptor f16 = MakeDescriptor(Encoding::kF16);
  const EncodingDescriptor q8 = MakeDescriptor(Encoding::kQ8);
  const EncodingDescriptor q4 = MakeDescriptor(Encoding::kQ4);
  const EncodingDescriptor q3 = MakeDescriptor(Encoding::kQ3);
  const EncodingDescriptor q2 = MakeDescriptor(Encoding::kQ2);
  const EncodingDescriptor q2_16 = MakeDescriptor(Encoding::kQ2, 16);
  const std::vector<KindMark> all = {{{"bf16", bf16, bf16, bf16}, 1.25},  {{"q8", q8, q8, q8}, 1.25},
                                     {{"q4", q4, q4, q4}, 1.4},           {{"q3", q3, q3, q3}, 1.8},
                                     {{"q2", q2, q2, q2}, 1.8},           {{"floe", q2, f16, f16}, 1.8},
                                     {{"corm", q2_16, q2_16, q2_16}, 1.8}};
  std::vector<KindMark> out;
  for (const KindMark& k : all) {
    if (Has(wanted, k.kind.name)) {
      out.push_back(k);
    }
  }
  return out;
}

const char* OrderWord(SparsityOrder order) {
  switch (order) {
    case SparsityOrder::kNone:
      return "dense";
    case SparsityOrder::kUp:
      return "up";
    case SparsityOrder::kGate:
      return "gate";
    case SparsityOrder::kProduct:
      return "product";
  }
  return "unknown";
}

class Bench {
 public:
  // `results` outlives it.
  Bench(const Options& options, bench::Results* results)
      : options_(options),
        results_(results),
        layers_(options.size, options.threads, options.isa, kMaxTokens) {}

  void Run() {
    std::printf("%s, %.1f GiB of weights\n", layers_.backend().Describe().c_str(),
                static_cast<double>(options_.size) / (1 << 30));
    bandwidth_ = layers_.MeasureBandwidth();
    std::printf("read bandwidth %.2f GB/s\n", bandwidth_ / 1e9);
    for (const LayerShape& shape : kShapes) {
      for (const KindMark& k : Kinds(options_.kinds)) {
        if (!Has(options_.shapes, shape.name)) {
          continue;
        }
        const absl::Status status = layers_.Use(shape, k.kind);
        if (absl::IsUnimplemented(status)) {
          std::printf("\n%s %s: %s\n", shape.name.c_str(), k.kind.name.c_str(),
                      std::string(status.message()).c_str());
          continue;
        }
        CheckOk(status);
        if (Wanted("masks")) {
          RunMasks(shape, k);
        }
        if (Wanted("floe") && shape.name == "mixtral") {
          RunFloe(shape, k.kind);
        }
        if (Wanted("intra")) {
          RunIntra(shape, k.kind);
        }
      }
    }
    std::printf("\nread bandwidth at the end %.2f GB/s\n", layers_.MeasureBandwidth() / 1e9);
  }

 private:
  bool Wanted(const char* part) const { return options_.only.empty() || options_.only == part; }

  struct Point {
    double sparsity = 0;
    Masking masking;
    double seconds = 1e9;  // time of a layer in the best round
    double kept = 0;       // kept coefficients of a layer
  };

  // Times every point over the whole mapping, in turns.
  void Time(const Routing& routing, std::vector<Point>* points) {
    const uint32_t layers = layers_.Layers(static_cast<uint32_t>(routing.rows.size()));
    layers_.backend().BeginStep();
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      for (Point& point : *points) {
        uint64_t kept = 0;
        const auto start = std::chrono::steady_clock::now();
        for (uint32_t layer = 0; layer < layers; ++layer) {
          kept += layers_.Run(layer, routing, point.masking);
        }
        point.seconds = std::min(point.seconds, Seconds(start) / layers);
        point.kept = static_cast<double>(kept) / layers;
      }
    }
    layers_.backend().EndStep();
  }

  std::vector<Point> PointsOf(SparsityOrder order, const std::vector<double>& sparsities) {
    std::vector<Point> points = {{}};
    for (const double sparsity : sparsities) {
      points.push_back({sparsity, {order, layers_.ThresholdFor(order, 1 - sparsity)}});
    }
    return points;
  }

  void RunMasks(const LayerShape& shape, const KindMark& k) {
    std::printf("\n%s, %s: %u of %u experts, one token\n%-8s %6s %9s %9s %9s %6s %6s %s\n",
                shape.name.c_str(), k.kind.name.c_str(), shape.top_k, shape.experts, "order", "kept", "us",
                "MB", "GB/s", "x", "mark", "");
    for (const SparsityOrder order : {SparsityOrder::kUp, SparsityOrder::kGate, SparsityOrder::kProduct}) {
      std::vector<Point> points = PointsOf(order, {0.5, 0.7, 0.8, 0.9});
      Time(layers_.RouteOne(), &points);
      for (const Point& p : points) {
        const SparseLayers::Bytes bytes = layers_.BytesOf(p.masking.order);
        const double touched = bytes.always * shape.top_k + bytes.per_kept * p.kept;
        const double ideal = touched / bandwidth_;
        const double allowed = k.mark * ideal + (ideal < 20e-6 ? 3e-6 : 0);
        std::printf("%-8s %5.1f%% %9.1f %9.3f %9.2f %6.3f %6.3f %s\n", OrderWord(p.masking.order),
                    100 * p.kept / shape.width / shape.top_k, p.seconds * 1e6, touched / 1e6,
                    touched / p.seconds / 1e9, p.seconds / ideal, allowed / ideal,
                    p.seconds <= allowed ? "" : "over");
        results_->Add(absl::StrCat(shape.name, " ", k.kind.name, " ", OrderWord(p.masking.order), ", ",
                                   std::lround(100 * p.kept / shape.width / shape.top_k), " % kept"),
                      p.seconds / ideal, "x the read of what counts");
      }
    }
  }

  void RunFloe(const LayerShape& shape, const ExpertKind& kind) {
    const double sparsities[] = {0.5, 0.6, 0.7, 0.8, 0.9};
    struct PaperRow {
      const char* device;
      double speed_up[5];
    };
    const PaperRow paper[] = {{"H100", {1.26, 1.37, 1.48, 1.59, 1.64}},
                              {"A100", {1.30, 1.35, 1.44, 1.52, 1.63}},
                              {"A6000", {1.44, 1.56, 1.72, 1.89, 1.99}},
                              {"RTX-3090", {1.43, 1.53, 1.72, 1.80, 1.92}}};
    std::vector<Point> points =
        PointsOf(SparsityOrder::kUp, std::vector<double>(std::begin(sparsities), std::end(sparsities)));
    Routing one = layers_.RouteOne();
    one.rows.resize(1);
    one.slots.resize(1);
    Time(one, &points);
    std::printf("\nFloE Table 1, one %s expert, %s: speed-up over 0 %%\n%-24s", shape.name.c_str(),
                kind.name.c_str(), "sparsity");
    for (const double sparsity : sparsities) {
      std::printf(" %5.0f%%", 100 * sparsity);
    }
    std::printf("\n%-24s", "here (0 %: ms)");
    for (size_t i = 1; i < points.size(); ++i) {
      std::printf(" %6.2f", points[0].seconds / points[i].seconds);
    }
    std::printf("   (%.3f)\n", points[0].seconds * 1e3);
    for (const PaperRow& row : paper) {
      std::printf("paper, %-17s", row.device);
      for (const double speed_up : row.speed_up) {
        std::printf(" %6.2f", speed_up);
      }
      std::printf("\n");
    }
  }

  void RunIntra(const LayerShape& shape, const ExpertKind& kind) {
    SparseProfileSpec spec;
    spec.order = SparsityOrder::kGate;
    spec.up = kind.up;
    spec.gate = kind.gate;
    spec.down = kind.down;
    spec.hidden = shape.hidden;
    spec.width = shape.width;
    spec.experts = shape.top_k;
    spec.max_tokens = kMaxTokens;
    const auto start = std::chrono::steady_clock::now();
    auto found = MeasureSparseSwitch(layers_.backend(), spec);
    CheckOk(found.status());
    std::printf("\nintra-expert, %s, %s: MoE layer, gate first (profile: %.1f s)\n", shape.name.c_str(),
                kind.name.c_str(), Seconds(start));
    std::printf("dense from this share kept on, by tokens of an expert:");
    for (uint32_t i = 0; i < SparseSwitch::kBatches; ++i) {
      std::printf(" %u: %.2f", 1u << i, static_cast<double>(found->dense_above[i]));
    }
    const SparseSwitchEntry entry{spec.order, kind.up, kind.gate, kind.down, *found};
    CheckOk(layers_.backend().SetSparseSwitches({&entry, 1}));
    std::printf("\n%-10s", "batch");
    for (uint32_t tokens = 1; tokens <= kMaxTokens; tokens *= 2) {
      std::printf(" %6u", tokens);
    }
    std::printf("   cut-over (tokens of an expert)\n");
    for (const double sparsity : {0.6, 0.7, 0.8, 0.9}) {
      IntraLine(sparsity, *found);
    }
    CheckOk(layers_.backend().SetSparseSwitches({}));
  }

  void IntraLine(double sparsity, const SparseSwitch& found) {
    const Masking masking{SparsityOrder::kGate, layers_.ThresholdFor(SparsityOrder::kGate, 1 - sparsity)};
    std::vector<double> paired;
    for (uint32_t tokens = 1; tokens <= kMaxTokens; tokens *= 2) {
      paired.push_back(Paired(layers_.RouteRandomly(tokens, tokens), masking));
    }
    std::printf("%3.0f%% x     ", 100 * sparsity);
    for (const double ratio : paired) {
      std::printf(" %6.2f", 1 / ratio);
    }
    uint32_t cut_over = 0;
    for (uint32_t tokens = 1; tokens <= kMaxTokens; tokens *= 2) {
      cut_over = 1 - sparsity < static_cast<double>(found.DenseAbove(tokens)) ? tokens : cut_over;
    }
    std::printf("   %u\n%3.0f%% paired", cut_over, 100 * sparsity);
    for (const double ratio : paired) {
      std::printf(" %6.3f", ratio);
    }
    std::printf("   %s\n", *std::max_element(paired.begin(), paired.end()) <= 1.02 ? "" : "over 1.02");
  }

  // Returns the median of masked time over dense time; each layer runs both, in alternating order.
  double Paired(const Routing& routing, const Masking& masking) {
    const uint32_t layers = std::max(1u, layers_.Layers(static_cast<uint32_t>(routing.rows.size())));
    std::vector<double> ratios;
    layers_.backend().BeginStep();
    const auto start = std::chrono::steady_clock::now();
    // Layers are far apart in the mapping, so both read from memory.
    for (uint32_t i = 0; ratios.size() < 5 || (Seconds(start) < 0.3 && ratios.size() < 400); ++i) {
      double seconds[2];
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t which = (i + j) % 2;
        const auto begin = std::chrono::steady_clock::now();
        layers_.Run((2 * i + j) % layers, routing, which == 0 ? Masking{} : masking);
        seconds[which] = Seconds(begin);
      }
      ratios.push_back(seconds[1] / seconds[0]);
    }
    layers_.backend().EndStep();
    return Median(ratios);
  }

  const Options options_;
  bench::Results* const results_;
  SparseLayers layers_;
  double bandwidth_ = 0;
};

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--size") {
      options->size = number / (2 << 20) * (2 << 20);
    } else if (flag == "--threads") {
      options->threads = static_cast<uint32_t>(number);
    } else if (flag == "--rounds") {
      options->rounds = static_cast<uint32_t>(number);
    } else if (flag == "--only" && Has("masks,floe,intra", value)) {
      options->only = value;
    } else if (flag == "--kinds") {
      options->kinds = value;
    } else if (flag == "--shapes") {
      options->shapes = value;
    } else if (flag == "--isa" && Has("best,avx2,avx2vnni,avx512", value)) {
      options->isa = value == "avx2"       ? CpuIsa::kAvx2
                     : value == "avx2vnni" ? CpuIsa::kAvx2Vnni
                     : value == "avx512"   ? CpuIsa::kAvx512
                                           : CpuIsa::kBest;
    } else {
      return false;
    }
  }
  // A layer of two bf16 Mixtral experts takes 0.7 GB.
  return argc % 2 == 1 && options->size >= (uint64_t{1} << 30) && options->rounds > 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("sparse_bench", &argc, argv);
  sluice::Options options;
  if (!sluice::ParseOptions(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: sparse_bench [--size BYTES (1 GiB at least)] [--threads N] [--isa "
                 "best|avx2|avx2vnni|avx512]\n"
                 "  [--rounds N] [--only masks|floe|intra] [--kinds bf16,q8,...] [--shapes mixtral,qwen3]\n  "
                 "[--json FILE]\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // prints lines as they are measured
  sluice::Bench(options, &results).Run();
  const uint32_t threads = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  return results.Write(threads) ? 0 : 1;
}
