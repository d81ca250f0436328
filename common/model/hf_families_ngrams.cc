// Qwen3.8-Flash-Next (qwen4_exp): Qwen3.5's gated DeltaNet layers between attention whose indexer chooses
// blocks, residual streams with gates of low rank, and hashed n-grams that are added to them.

#include <algorithm>
#include <string>
#include <vector>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"
#include "common/model/ngram_hash.h"

namespace sluice {
namespace {

IndexConfig ReadBlockIndex(const ModelConfig& model, HfFields* fields) {
  IndexConfig index;
  index.heads = fields->Number("indexer_n_heads", 1, kMaxHeads);
  index.head_dim = fields->Number("indexer_head_dim", 2, kMaxHeadDim, 128);
  fields->RequireNumber("indexer_kv_heads", 1);
  index.pooled = true;
  index.summed = true;
  index.norm_epsilon = model.norm_epsilon;
  index.block = fields->Number("indexer_compress_ratio", 1, kMaxRate);
  const uint32_t positions = fields->Number("indexer_budget", 1, kMaxPosition);
  if (positions < index.block) {
    fields->Fail("indexer_budget",
                 absl::StrCat("is ", positions, ", less than the ", index.block, " of a block"));
  }
  index.top = positions / index.block + 1;
  return index;
}

// The token that n-grams do not cross.
uint32_t ReadEndToken(const ModelConfig& model, HfFields* fields) {
  if (!fields->IsList("eos_token_id")) return fields->Number("eos_token_id", 0, model.vocab - 1);
  const std::vector<uint32_t> ids = fields->Numbers("eos_token_id", model.vocab - 1);
  if (ids.size() != 1) fields->Refuse("eos_token_id", "of n-grams: one is needed");
  return ids.empty() ? 0 : ids.front();
}

// The n-grams of the first layer that has them.
NgramConfig ReadNgramShape(const ModelConfig& model, HfFields* fields) {
  NgramConfig ngrams;
  ngrams.size = fields->Number("ngram_size", 2, kMaxNgram, 3);
  ngrams.heads = fields->Number("heads_per_ngram", 1, kMaxNgramHeads / ngrams.size);
  const uint32_t width = fields->Number("ple_embed_dim", 1, uint64_t{kMaxHeadDim} * NgramHeads(ngrams));
  if (width % NgramHeads(ngrams) != 0) {
    fields->Fail("ple_embed_dim", absl::StrCat("is ", width, ", which ", NgramHeads(ngrams),
                                               " rows of equal width cannot make"));
  }
  ngrams.width = std::max(1u, width / NgramHeads(ngrams));
  ngrams.base = fields->Number("ngram_vocab_size_base", 2, kMaxNgramBase - 1);
  ngrams.seed = fields->Number("seed", 0, 0xffffffffu, 1234);
  ngrams.end = ReadEndToken(model, fields);
  ngrams.kernel = fields->Number("ple_conv_kernel_size", 2, kMaxConvKernel, 4);
  return ngrams;
}

void ReadNgrams(ModelConfig* model, HfFields* fields) {
  const std::vector<uint32_t> layers = fields->Numbers("ple_layer_ids", model->layers.size());
  const uint64_t divisor = fields->Number("make_ngram_vocab_size_divisible_by", 1, 1u << 20, 1);
  fields->Skip("split_ngram_parts");  // the tensors show it
  fields->Skip("number_of_conv_states");
  if (layers.empty()) {
    for (const char* key : {"ngram_size", "heads_per_ngram", "ple_embed_dim", "ngram_vocab_size_base", "seed",
                            "ple_conv_kernel_size"}) {
      fields->Skip(key);
    }
    return;
  }
  NgramConfig ngrams = ReadNgramShape(*model, fields);
  if (layers.size() * NgramHeads(ngrams) > kMaxNgramHeads) {
    return fields->Fail("ple_layer_ids",
                        absl::StrCat("names ", layers.size(), " layers of ", NgramHeads(ngrams),
                                     " rows a token, more than ", kMaxNgramHeads, " rows together"));
  }
  uint32_t before = 0;
  for (const uint32_t layer : layers) {
    if (layer <= before) return fields->Fail("ple_layer_ids", "is not ascending from 1");
    const uint64_t rows = NgramHash(ngrams, model->vocab).rows();
    ngrams.rows = (rows + divisor - 1) / divisor * divisor;
    model->layers[layer - 1].ngrams = ngrams;
    ++ngrams.layer;
    before = layer;
  }
}

struct StreamNames {
  std::string_view norm;
  std::string_view down;
  std::string_view up;
  std::string_view add;
};

void MapGatedStreams(const std::string& base, const StreamNames& names, LayerMapper* layer) {
  const StreamConfig& streams = layer->streams();
  const uint32_t all = streams.count * layer->hidden();
  layer->Dense(names.norm, PlusOne(layer->Vector(base + "hc_norm.weight", all)));
  layer->Dense(names.down, layer->Matrix(base + "input_mix_weight_down.weight", streams.rank, all));
  layer->Dense(names.up, layer->Matrix(base + "input_mix_weight_up.weight", all, streams.rank));
  layer->Dense(names.add, layer->Matrix(base + "block_inject_weight.weight", streams.count, all));
}

// The table in equal parts, or as one.
SourceMatrix NgramRowsOf(LayerMapper* layer) {
  const NgramConfig& ngrams = layer->ngrams();
  const std::string base = "ple.ple_embedding.ngram_embedding.";
  const auto shard = [&base](uint32_t part) { return absl::StrCat(base, "shard_", part, ".weight"); };
  uint32_t parts = 0;
  while (layer->Has(shard(parts))) ++parts;
  if (parts == 0) return layer->Matrix(base + "weight", ngrams.rows, ngrams.width);
  std::vector<SourceMatrix> others;
  for (uint32_t part = 1; part < parts; ++part) {
    others.push_back(layer->Matrix(shard(part), ngrams.rows / parts, ngrams.width));
  }
  return Stacked(layer->Matrix(shard(0), ngrams.rows / parts, ngrams.width), std::move(others));
}

void MapNgrams(LayerMapper* layer) {
  const NgramConfig& ngrams = layer->ngrams();
  const uint32_t all = layer->streams().count * layer->hidden();
  const uint32_t width = NgramWidth(ngrams);
  layer->Dense(dense::kNgramRows, NgramRowsOf(layer));
  layer->Dense(dense::kNgramKey, layer->Matrix("ple.key_proj.weight", all, width));
  layer->Dense(dense::kNgramValue, layer->Matrix("ple.value_proj.weight", layer->hidden(), width));
  layer->Dense(dense::kNgramKeyNorm, PlusOne(layer->Vector("ple.norm_key.weight", all)));
  layer->Dense(dense::kNgramQueryNorm, PlusOne(layer->Vector("ple.norm_query.weight", all)));
  layer->Dense(dense::kNgramConvNorm, PlusOne(layer->Vector("ple.norm_conv.weight", all)));
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kNgramConv, Transposed(layer->Stack("ple.conv1d.weight", all, 1, ngrams.kernel)));
  // Made of the configuration (ngram_hash.h).
  for (const char* name : {"layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"}) {
    layer->IgnorePrefix(absl::StrCat("ple.ple_embedding.", name));
  }
}

void MapIndexedAttention(LayerMapper* layer) {
  const IndexConfig& index = layer->attention().index;
  const uint32_t queries = index.heads * index.head_dim;
  MapGatedAttention(layer);
  const std::string base = "self_attn.indexer.";
  const SourceMatrix both =
      layer->Matrix(base + "index_qk_proj.weight", uint64_t{queries} + index.head_dim, layer->hidden());
  layer->Dense(dense::kIndexQ, SliceRows(both, 0, queries));
  layer->Dense(dense::kIndexK, SliceRows(both, queries, index.head_dim));
  layer->Dense(dense::kIndexQNorm, PlusOne(layer->Vector(base + "q_layernorm.weight", index.head_dim)));
  layer->Dense(dense::kIndexKNorm, PlusOne(layer->Vector(base + "k_layernorm.weight", index.head_dim)));
}

}  // namespace

ModelConfig ReadQwen4Exp(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen4_exp_text", {.max_position = 32768}, fields);
  model.streams.count = fields->Number("hc_count", 2, kMaxStreamCount, 4);
  model.streams.rank = fields->Number("hc_lowrank", 1, kMaxHidden, 320);
  MoeConfig moe = ReadGatedMixture(fields);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  AttentionConfig full = ReadGatedAttention(model, fields);
  full.index = ReadBlockIndex(model, fields);
  AttentionConfig delta = ReadGatedDelta(fields);
  const std::string gate = fields->Word("output_gate_type", "silu");
  delta.delta.sigmoid_gate = gate == "sigmoid";
  if (gate != "sigmoid" && gate != "silu" && gate != "swish") fields->Refuse("output_gate_type");
  const uint32_t interval = fields->Number("full_attention_interval", 1, kMaxLayers, 4);
  const std::vector<std::string> types = ReadLayerTypes(
      {"linear_attention", "indexed_attention", "full_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerConfig& layer = model.layers[i];
    const bool linear = types.empty() ? (i + 1) % interval != 0 : types[i] == "linear_attention";
    layer.attention = linear ? delta : full;
    layer.moe = moe;
    layer.pre_norms = false;
  }
  ReadNgrams(&model, fields);
  fields->RequireFlag("attn_output_gate", true);
  fields->RequireNumber("decoder_sparse_step", 1);
  if (!fields->Numbers("mlp_only_layers", kMaxLayers).empty()) fields->Refuse("mlp_only_layers");
  for (const char* key : {"intermediate_size", "mamba_ssm_dtype", "mtp_num_hidden_layers"}) fields->Skip(key);
  return model;
}

// Maps whole folders, and text models alone.
void MapQwen4Exp(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("model.language_model.embed_tokens.weight");
  const std::string inner = nested ? "model.language_model." : "model.";
  const uint32_t all = config.streams.count * config.hidden;
  mapper->IgnorePrefix("mtp.");
  if (nested) mapper->IgnorePrefix("model.visual.");
  MapEmbeddingAndHead(config, {.embed = inner + "embed_tokens.weight"}, mapper);
  const std::string mixer = inner + "hyper_connection_mixer.";
  mapper->Dense(std::string(dense::kHeadStreamsNorm),
                PlusOne(mapper->Tensor(mixer + "hc_norm.weight", {all})));
  mapper->Dense(std::string(dense::kHeadStreamsDown),
                mapper->Tensor(mixer + "input_mix_weight_down.weight", {config.streams.rank, all}));
  mapper->Dense(std::string(dense::kHeadStreamsUp),
                mapper->Tensor(mixer + "input_mix_weight_up.weight", {all, config.streams.rank}));
  MapLayers(config, inner + "layers.", mapper,
            [](LayerMapper* layer) {
              MapGatedStreams("attn_hyper_connection.",
                              {dense::kAttnStreamsNorm, dense::kAttnStreamsDown, dense::kAttnStreamsUp,
                               dense::kAttnStreamsAdd},
                              layer);
              MapGatedStreams("mlp_hyper_connection.",
                              {dense::kFfnStreamsNorm, dense::kFfnStreamsDown, dense::kFfnStreamsUp,
                               dense::kFfnStreamsAdd},
                              layer);
              if (layer->ngrams().size > 0) MapNgrams(layer);
              layer->attention().kind == AttentionKind::kGatedDelta ? MapGatedDelta(layer)
                                                                    : MapIndexedAttention(layer);
              MapGatedMixture(layer);
            },
            {.attention = nullptr, .ffn = nullptr});
}

}  // namespace sluice
