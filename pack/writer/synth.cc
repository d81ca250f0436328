#include "pack/writer/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "common/model/model_config_json.h"
#include "common/model/model_limits.h"
#include "common/model/ngram_hash.h"
#include "pack/pack_plan.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/parallel_units.h"
#include "pack/writer/staging.h"
#include "pack/writer/synth_flagships.h"
#include "pack/writer/synth_weights.h"

namespace sluice {
namespace {

struct Shape {
  const char* name;
  uint32_t hidden;
  uint32_t expert_width;
  uint32_t layers;
  uint32_t experts;
  uint32_t top_k;
  uint32_t shared_width;
  bool shared_gate;      // the shared expert's output is scaled by a sigmoid of its own
  uint32_t first_dense;  // width of the first layer's dense FFN, 0: the first layer has experts too
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t vocab;
  uint32_t max_position;
  double theta;
  // Changes the model further; nullptr: nothing.
  void (*extend)(const SynthOptions& options, ModelConfig* config) = nullptr;
};

// Makes three of four layers gated delta ones, the others choose blocks by an indexer; adds gated residual
// streams, and hashed n-grams to the second layer.
void AddStreamsAndNgrams(const SynthOptions& options, ModelConfig* config) {
  constexpr uint64_t kNgramBase = 20'000'000;
  config->streams = {.count = 4, .rank = config->hidden / 8};
  for (size_t i = 0; i < config->layers.size(); ++i) {
    LayerConfig& layer = config->layers[i];
    layer.pre_norms = false;
    if (i % 4 == 3) {
      layer.attention.index = {
          .heads = 4, .head_dim = 128, .top = 513, .block = 4, .pooled = true, .summed = true};
      layer.attention.qk_norm = QkNorm::kPerHead;
      layer.attention.output_gate = true;
      layer.attention.rope.dimensions = 64;
      continue;
    }
    layer.attention = {};
    layer.attention.kind = AttentionKind::kGatedDelta;
    layer.attention.rope = RopeConfig{.kind = RopeKind::kNone};
    layer.attention.delta = {
        .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
  }
  NgramConfig& ngrams = config->layers[std::min<size_t>(1, config->layers.size() - 1)].ngrams;
  ngrams = {.size = 3, .heads = 8, .width = config->hidden / 16};
  ngrams.base = options.ngram_base != 0 ? options.ngram_base : kNgramBase;
  ngrams.seed = 1234;
  ngrams.end = static_cast<uint32_t>(kSynthEosId);
  ngrams.kernel = 4;
  ngrams.rows = NgramHash(ngrams, config->vocab).rows();
}

// Sizes of the models' own config.json; attention extras (biases, q/k norms, gated delta) are left out, but
// for the last ones.
constexpr Shape kShapes[] = {
    {"mixtral-8x7b", 4096, 14336, 32, 8, 2, 0, false, 0, 32, 8, 128, 32000, 32768, 1e6},
    {"mixtral-8x22b", 6144, 16384, 56, 8, 2, 0, false, 0, 48, 8, 128, 32000, 65536, 1e6},
    {"qwen3-30b-a3b", 2048, 768, 48, 128, 8, 0, false, 0, 32, 4, 128, 151936, 40960, 1e6},
    {"qwen2-57b-a14b", 3584, 2560, 28, 64, 8, 20480, true, 0, 28, 4, 128, 151936, 131072, 1e6},
    {"deepseek-moe-16b", 2048, 1408, 28, 64, 6, 2816, false, 10944, 16, 16, 128, 102400, 4096, 1e4},
    {"xverse-a4.2b", 2560, 1728, 28, 64, 6, 3456, false, 0, 32, 32, 80, 100608, 8192, 5e5},
    // For tests and first tries: 6 MB a layer in bf16.
    {"tiny", 128, 256, 4, 32, 4, 0, false, 0, 4, 2, 32, 512, 4096, 1e4},
    // The sample model's sizes with a few more layers: policies at the papers' localities within seconds.
    {"tiny-mixtral", 128, 448, 8, 8, 2, 0, false, 0, 4, 2, 32, 2048, 4096, 1e4},
    {"qwen3.5-35b-a3b", 2048, 512, 40, 256, 8, 512, true, 0, 16, 2, 256, 248320, 262144, 1e7},
    {"qwen3.8-flash-next", 2560, 640, 48, 512, 10, 640, true, 0, 24, 2, 256, 248320, 262144, 1e7,
     &AddStreamsAndNgrams},
};

constexpr float kEpsilon = 1e-5f;

absl::StatusOr<const Shape*> FindShape(const std::string& name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return &shape;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown shape \"", name.substr(0, 60),
                                                 "\" (known: ", absl::StrJoin(SynthShapeNames(), ", "), ")"));
}

LayerConfig LayerOf(const Shape& shape) {
  LayerConfig layer;
  layer.attention.heads = shape.heads;
  layer.attention.kv_heads = shape.kv_heads;
  layer.attention.head_dim = shape.head_dim;
  layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  layer.attention.rope.theta = shape.theta;
  layer.attention.rope.dimensions = shape.head_dim;
  layer.moe.experts = shape.experts;
  layer.moe.top_k = shape.top_k;
  layer.moe.expert_width = shape.expert_width;
  layer.moe.shared_width = shape.shared_width;
  layer.moe.shared_gate = shape.shared_gate;
  return layer;
}

}  // namespace

std::vector<std::string> SynthShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  for (std::string& name : FlagshipNames()) names.push_back(std::move(name));
  return names;
}

namespace {

// The model of a row of kShapes; its family and special tokens are left to the caller.
absl::StatusOr<ModelConfig> PlainModel(const SynthOptions& options) {
  ASSIGN_OR_RETURN(const Shape* shape, FindShape(options.shape));
  if (options.layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", options.layers, "; at most ", kMaxLayers, " are possible"));
  }
  ModelConfig config;
  config.vocab = options.vocab != 0 ? options.vocab : shape->vocab;
  config.hidden = shape->hidden;
  config.max_position = shape->max_position;
  config.norm_epsilon = kEpsilon;
  config.layers.assign(options.layers != 0 ? options.layers : shape->layers, LayerOf(*shape));
  if (shape->first_dense != 0) {
    config.layers[0].moe = {};
    config.layers[0].moe.dense_width = shape->first_dense;
  }
  if (shape->extend != nullptr) {
    if (options.ngram_base >= kMaxNgramBase || options.ngram_base == 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("ngram_base is ", options.ngram_base, "; 2 to below ", kMaxNgramBase, " is expected"));
    }
    shape->extend(options, &config);
  }
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> SynthModel(const SynthOptions& options) {
  absl::StatusOr<ModelConfig> flagship = FlagshipModel(options.shape, options.layers);
  if (!flagship.ok() && !absl::IsNotFound(flagship.status())) return flagship.status();
  ModelConfig config;
  if (flagship.ok()) {
    config = *std::move(flagship);
    if (options.vocab != 0) config.vocab = options.vocab;
  } else {
    ASSIGN_OR_RETURN(config, PlainModel(options));
  }
  config.family = "synthetic";
  if (config.vocab < kSynthTokenizerIds || config.vocab > kMaxVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab is ", config.vocab, "; ", kSynthTokenizerIds, " to ", kMaxVocab, " is expected"));
  }
  const bool ngrams = std::any_of(config.layers.begin(), config.layers.end(),
                                  [](const LayerConfig& layer) { return HasNgrams(layer); });
  if (options.ngram_base != 0 && !ngrams) {
    return absl::InvalidArgumentError(
        absl::StrCat("ngram_base, but shape ", options.shape, " has no n-grams"));
  }
  config.bos_ids = {kSynthBosId};
  config.eos_ids = {kSynthEosId};
  RETURN_IF_ERROR(ValidateModelConfig(config, options.shape));
  return config;
}

namespace {

constexpr char kSynthGenerator[] = "sluice synth 2";
// Encoded records that all experts are cut from: 16 M values of each part (or one layer's, if that is less),
// far more than one expert of the fine-grained models and generated quickly; an expert then costs only a copy
// and a checksum.
constexpr uint64_t kPoolValues = 16ull << 20;
constexpr uint64_t kDenseExtentBytes = 64ull << 20;
constexpr uint64_t kSynthBlockValues = 256 * 1024;

enum Use : uint64_t { kDenseTensor = 1, kPoolRows = 2, kPoolStart = 3, kRowTable = 16 };

// Records of one stream, at their stride.
struct RecordPool {
  uint32_t stride = 0;
  uint32_t rows = 0;
  std::vector<std::byte> bytes;
};

// Decisions made before the first byte is written.
struct SynthJob {
  SynthOptions options;
  Manifest manifest;
  std::vector<DenseSpec> specs;
  std::vector<ExtentEntry> extents;
  uint32_t dense_extents = 0;
  std::array<uint64_t, kPackFileCount> payload_bytes = {};
  std::vector<std::vector<float>> routers;
  std::vector<float> direction;  // empty with uniform routing
  double token_correlation = 0;
  std::vector<std::array<RecordPool, kPartCount>> pools;  // [format][stream]
};

// Standard deviation of a dense tensor's values: outputs keep the size of inputs, and inputs of the residual
// are scaled down by the number of layers, so that a random model's states neither grow nor vanish.
float DenseScale(const ModelConfig& config, const DenseSpec& spec) {
  const float by_columns = 1.0f / std::sqrt(static_cast<float>(spec.cols));
  const float by_depth = 1.0f / std::sqrt(2.0f * static_cast<float>(config.layers.size()));
  if (spec.name.ends_with(".o")) return by_columns * by_depth;
  // Its outputs sum over the rows where it is transposed.
  if (spec.name.ends_with("_down")) {
    const uint32_t neurons = spec.kind == DenseKind::kSummed ? spec.rows : spec.cols;
    return by_depth / std::sqrt(static_cast<float>(neurons));
  }
  return by_columns;
}

// The standard deviation of a part's values, by the same rule.
float PartScale(const ModelConfig& config, Part part) {
  const MoeConfig& moe = config.layers.back().moe;
  if (part != Part::kDown) return 1.0f / std::sqrt(static_cast<float>(ExpertHidden(config)));
  return 1.0f /
         std::sqrt(2.0f * static_cast<float>(config.layers.size()) * static_cast<float>(moe.expert_width));
}

RecordPool MakePool(const ModelConfig& config, const ExpertFormat& format, uint32_t stream, uint64_t seed) {
  const MoeConfig& moe = config.layers.back().moe;
  const ExpertPlan plan = PlanExpert(format, moe.expert_width, ExpertHidden(config));
  const uint64_t of_a_layer = uint64_t{moe.experts} * plan.stream_rows[stream];
  RecordPool pool;
  pool.stride = plan.stream_stride[stream];
  pool.rows = static_cast<uint32_t>(std::clamp<uint64_t>(kPoolValues / ExpertHidden(config), 1, of_a_layer));
  pool.bytes.resize(static_cast<uint64_t>(pool.rows) * pool.stride);
  for (int p = 0; p < kPartCount; ++p) {
    if (plan.parts[p].stream != stream) continue;
    std::vector<float> row(plan.parts[p].cols);
    const float scale = PartScale(config, static_cast<Part>(p));
    NormalStream random(SynthSeed(seed, kPoolRows, static_cast<uint64_t>(p), 0));
    for (uint32_t r = 0; r < pool.rows; ++r) {
      random.Fill(scale, absl::MakeSpan(row));
      EncodeRow(format.parts[p], row,
                pool.bytes.data() + static_cast<uint64_t>(r) * pool.stride + plan.parts[p].base);
    }
  }
  return pool;
}

absl::Status PlanJob(const Recipe& recipe, SynthJob* job) {
  const ModelConfig& config = job->manifest.config;
  job->specs = DenseSpecs(config, IsByOutputs(recipe.layout));
  std::vector<EncodingDescriptor> encodings;
  for (const DenseSpec& spec : job->specs) {
    encodings.push_back(spec.kind == DenseKind::kVector ? MakeDescriptor(Encoding::kF32)
                        : spec.kind == DenseKind::kRouter || spec.kind == DenseKind::kRows
                            ? MakeDescriptor(Encoding::kBf16)
                            : DescriptorOf(recipe.Dense(), spec.cols));
  }
  job->manifest.dense_tensors = PlaceDense(job->specs, encodings, kDenseExtentBytes);
  std::vector<std::vector<uint64_t>> even_usage;
  for (const LayerConfig& layer : config.layers) even_usage.emplace_back(layer.moe.experts);
  ASSIGN_OR_RETURN(const ExpertFormats formats, ResolveFormats(recipe, config, even_usage));
  job->manifest.expert_formats = formats.formats;
  const ExpertPlans plans(config, formats.formats);
  ExtentPlanner planner;
  RETURN_IF_ERROR(planner.AddDense(job->specs, job->manifest.dense_tensors));
  job->dense_extents = static_cast<uint32_t>(planner.extents().size());
  RETURN_IF_ERROR(planner.AddRows(job->specs, job->manifest.dense_tensors));
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < config.layers[layer].moe.experts; ++expert) {
      const uint32_t format = formats.of_expert[layer][expert];
      RETURN_IF_ERROR(planner.AddExpert(layer, expert, format, plans.Of(layer, format)));
    }
  }
  for (int f = 0; f < kPackFileCount; ++f)
    job->payload_bytes[f] = planner.file_bytes(static_cast<PackFile>(f));
  job->extents = planner.TakeExtents();
  return absl::OkStatus();
}

void MakeWeights(double zipf, SynthJob* job) {
  const ModelConfig& config = job->manifest.config;
  const uint64_t seed = job->options.seed;
  job->routers = SynthRouters(config, zipf, job->options.similarity, seed);
  if (zipf > 0) job->direction = PreferenceDirection(config.hidden, seed);
  const MoeConfig& moe = config.layers.back().moe;
  if (moe.experts == 0) return;
  job->token_correlation = CorrelationForReuse(moe.experts, moe.top_k, job->options.reuse);
  for (const ExpertFormat& format : job->manifest.expert_formats) {
    std::array<RecordPool, kPartCount>& pools = job->pools.emplace_back();
    const uint32_t streams = PlanExpert(format, moe.expert_width, ExpertHidden(config)).streams;
    for (uint32_t stream = 0; stream < streams; ++stream) {
      pools[stream] = MakePool(config, format, stream, seed);
    }
  }
}

// The rows of a dense tensor as float32, generated one after the other: no tensor is ever in memory as a
// whole.
class DenseRows {
 public:
  DenseRows(const SynthJob& job, size_t index)
      : job_(job),
        spec_(job.specs[index]),
        random_(SynthSeed(job.options.seed, kDenseTensor, index, 0)),
        tokens_(job.manifest.config.hidden, job.token_correlation, job.options.seed) {}

  // The next out.size() / cols rows.
  void Next(absl::Span<float> out) {
    if (spec_.name.ends_with(dense::kTokenExperts)) {
      NextTokenExperts(out);
    } else if (spec_.kind == DenseKind::kVector) {
      std::fill(out.begin(), out.end(), spec_.name.ends_with("norm") ? 1.0f : 0.0f);
    } else if (spec_.name.ends_with(".router")) {
      const std::vector<float>& rows = job_.routers[spec_.layer];
      std::copy_n(rows.begin() + static_cast<size_t>(row_) * spec_.cols, out.size(), out.begin());
    } else if (spec_.name == dense::kEmbed || spec_.name == dense::kHead) {
      NextTokens(out);
    } else {
      random_.Fill(DenseScale(job_.manifest.config, spec_), out);
    }
    row_ += static_cast<uint32_t>(out.size() / spec_.cols);
  }

 private:
  // Distinct experts of each token, another set for its neighbour.
  void NextTokenExperts(absl::Span<float> out) const {
    const uint32_t experts = job_.manifest.config.layers[spec_.layer].moe.experts;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>((uint64_t{row_} * spec_.cols + i) % experts);
    }
  }

  void NextTokens(absl::Span<float> out) {
    for (size_t at = 0; at < out.size(); at += spec_.cols) {
      const absl::Span<float> row = out.subspan(at, spec_.cols);
      if (spec_.name == dense::kHead) {
        tokens_.Next({}, row);
        continue;
      }
      tokens_.Next(row, {});
      for (size_t i = 0; i < job_.direction.size(); ++i) row[i] += job_.direction[i];
    }
  }

  const SynthJob& job_;
  const DenseSpec& spec_;
  NormalStream random_;
  TokenChain tokens_;
  uint32_t row_ = 0;
};

absl::Status WriteDenseTensor(const SynthJob& job, size_t index, ExtentWriter* writer, ProgressMeter* meter) {
  const DenseTensor& tensor = job.manifest.dense_tensors[index];
  const uint32_t block =
      static_cast<uint32_t>(std::clamp<uint64_t>(kSynthBlockValues / tensor.cols, 1, tensor.rows));
  std::vector<float> values;
  std::vector<std::byte> records;
  DenseRows rows(job, index);
  for (uint32_t first = 0; first < tensor.rows; first += block) {
    const uint32_t count = std::min(block, tensor.rows - first);
    values.resize(static_cast<uint64_t>(count) * tensor.cols);
    records.assign(static_cast<uint64_t>(count) * tensor.stride, std::byte{0});
    rows.Next(absl::MakeSpan(values));
    for (uint32_t r = 0; r < count; ++r) {
      EncodeRow(tensor.encoding,
                absl::MakeConstSpan(values).subspan(static_cast<uint64_t>(r) * tensor.cols, tensor.cols),
                records.data() + static_cast<uint64_t>(r) * tensor.stride);
    }
    RETURN_IF_ERROR(writer->Append(records));
    RETURN_IF_ERROR(meter->Add(records.size()));
  }
  return absl::OkStatus();
}

// Writes an expert as a run of its stream's pool that begins at an offset of the expert's own and wraps
// around at the pool's end.
absl::Status WriteExpertStream(const SynthJob& job, const ExtentEntry& entry, ExtentWriter* writer,
                               ProgressMeter* meter) {
  const RecordPool& pool = job.pools[entry.format][entry.stream];
  const uint64_t location = SynthSeed(job.options.seed, kPoolStart + entry.stream, entry.layer, entry.expert);
  uint32_t row = static_cast<uint32_t>(location % pool.rows);
  const ModelConfig& config = job.manifest.config;
  const ExpertFormat& format = job.manifest.expert_formats[entry.format];
  uint32_t left = PlanExpert(format, config.layers[entry.layer].moe.expert_width, ExpertHidden(config))
                      .stream_rows[entry.stream];
  while (left > 0) {
    const uint32_t count = std::min(left, pool.rows - row);
    const uint64_t bytes = static_cast<uint64_t>(count) * pool.stride;
    RETURN_IF_ERROR(writer->Append(
        absl::MakeConstSpan(pool.bytes).subspan(static_cast<uint64_t>(row) * pool.stride, bytes)));
    RETURN_IF_ERROR(meter->Add(bytes));
    left -= count;
    row = 0;
  }
  return absl::OkStatus();
}

// Writes an extent of a table of random rows.
absl::Status WriteRowExtent(const SynthJob& job, const ExtentEntry& entry, ExtentWriter* writer,
                            ProgressMeter* meter) {
  const std::string name = dense::LayerName(entry.layer, dense::kNgramRows);
  const std::vector<DenseTensor>& tensors = job.manifest.dense_tensors;
  const auto table =
      std::find_if(tensors.begin(), tensors.end(), [&name](const auto& t) { return t.name == name; });
  const uint32_t each = RowsPerExtent(table->stride);
  const uint32_t rows = std::min(each, table->rows - entry.expert * each);
  std::vector<std::byte> records(uint64_t{rows} * table->stride, std::byte{0});
  std::vector<float> row(table->cols);
  NormalStream random(SynthSeed(job.options.seed, kRowTable, entry.layer, entry.expert));
  for (uint32_t r = 0; r < rows; ++r) {
    random.Fill(1.0f, absl::MakeSpan(row));
    EncodeRow(table->encoding, row, records.data() + uint64_t{r} * table->stride);
  }
  RETURN_IF_ERROR(writer->Append(records));
  return meter->Add(records.size());
}

absl::Status WriteExtent(const SynthJob& job, uint32_t extent, const Staging& staging, ProgressMeter* meter,
                         std::vector<uint64_t>* checksums) {
  const ExtentEntry& entry = job.extents[extent];
  ExtentWriter writer(staging.file(entry.file), entry);
  if (entry.kind == ExtentKind::kExpert) {
    RETURN_IF_ERROR(WriteExpertStream(job, entry, &writer, meter));
  } else if (entry.kind == ExtentKind::kRows) {
    RETURN_IF_ERROR(WriteRowExtent(job, entry, &writer, meter));
  } else {
    const std::vector<DenseTensor>& tensors = job.manifest.dense_tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].extent != extent) continue;
      RETURN_IF_ERROR(writer.PadTo(tensors[i].offset));
      RETURN_IF_ERROR(WriteDenseTensor(job, i, &writer, meter));
    }
  }
  RETURN_IF_ERROR(writer.Finish());
  *checksums = writer.checksums();
  return absl::OkStatus();
}

absl::StatusOr<SynthJob> Prepare(const SynthOptions& options) {
  if (!(options.reuse >= 0 && options.reuse < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reuse is ", options.reuse, "; a number from 0 to below 1 is expected"));
  }
  if (!(options.similarity >= 0 && options.similarity <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("similarity is ", options.similarity, "; a number from 0 to 1 is expected"));
  }
  ASSIGN_OR_RETURN(const double zipf, ParseRouting(options.routing));
  ASSIGN_OR_RETURN(const Recipe recipe, RecipeFromOptions(options.rows));
  SynthJob job;
  job.options = options;
  ASSIGN_OR_RETURN(job.manifest.config, SynthModel(options));
  RETURN_IF_ERROR(PlanJob(recipe, &job));
  Provenance& provenance = job.manifest.provenance;
  provenance.generator = kSynthGenerator;
  provenance.options =
      absl::StrCat("shape=", options.shape, " ", RecipeText(recipe), " routing=", options.routing,
                   " reuse=", options.reuse, " similarity=", options.similarity, " seed=", options.seed);
  provenance.source_digest =
      DigestOf(absl::StrCat(provenance.options, ModelConfigToJson(job.manifest.config).dump())).ToHex();
  MakeWeights(zipf, &job);
  return job;
}

}  // namespace

absl::StatusOr<PackSummary> SynthesizePack(const SynthOptions& options, const std::string& out_dir,
                                           const PackingProgressFn& progress,
                                           const std::atomic<bool>* cancel) {
  RETURN_IF_ERROR(CheckTarget(out_dir, options.force));
  ASSIGN_OR_RETURN(SynthJob job, Prepare(options));
  Digest128 fingerprint;
  Digest128::FromHex(job.manifest.provenance.source_digest, &fingerprint);
  ASSIGN_OR_RETURN(const std::unique_ptr<Staging> staging,
                   Staging::Open(out_dir, options.force, fingerprint, job.payload_bytes));
  const uint64_t bytes = std::accumulate(job.payload_bytes.begin(), job.payload_bytes.end(), uint64_t{0});
  ProgressMeter meter(progress, cancel, "writing", bytes);
  const uint32_t units = static_cast<uint32_t>(job.extents.size());
  std::vector<std::vector<uint64_t>> checksums(units);
  RETURN_IF_ERROR(RunUnits(WorkerCount(options.threads, units), units, [&](uint32_t, uint32_t unit) {
    return WriteExtent(job, unit, *staging, &meter, &checksums[unit]);
  }));
  meter.SetStage("finishing");
  ExtentTable table;
  table.entries = std::move(job.extents);
  for (const std::vector<uint64_t>& of_extent : checksums) {
    table.checksums.insert(table.checksums.end(), of_extent.begin(), of_extent.end());
  }
  PackSummary summary;
  ASSIGN_OR_RETURN(summary.bytes, staging->Commit(&job.manifest, table, SynthTokenizerFiles()));
  summary.model_id = job.manifest.model_id;
  for (const LayerConfig& layer : job.manifest.config.layers) summary.experts += layer.moe.experts;
  summary.seconds = meter.seconds();
  summary.old_profile = staging->old_profile();
  return summary;
}

}  // namespace sluice
