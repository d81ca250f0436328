// Families whose residual has several streams (hyper-connections): GLM-5.3-Flash, DeepSeek-V4.

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

StreamConfig ReadStreams(bool mean_output, HfFields* fields) {
  StreamConfig streams;
  streams.count = fields->Number("hc_mult", 2, kMaxStreamCount, 4);
  streams.iterations = fields->Number("hc_sinkhorn_iters", 1, kMaxIterations, 20);
  streams.epsilon = static_cast<float>(fields->Real("hc_eps", 0, 1, 1e-6));
  streams.mean_output = mean_output;
  return streams;
}

// Sets the limit of experts, shared expert and dense FFNs, which acts before the activation.
void ReadLimit(MoeConfig* moe, HfFields* fields) {
  fields->RequireWord("hidden_act", "silu");
  const double limit = fields->Real("swiglu_limit", 0, 1e6, 10);
  if (limit == 0) return;
  moe->activation = Activation::kLimitedSilu;
  moe->activation_limit = static_cast<float>(limit);
}

// Maps `published`{fn,base,scale}, or under `written` as transformers 5 writes them.
void MapStreams(const char* published, const char* written, std::string_view matrix, std::string_view base,
                std::string_view scale, LayerMapper* layer) {
  const std::string prefix = layer->Has(absl::StrCat(written, "fn")) ? written : published;
  const StreamConfig& streams = layer->streams();
  const uint64_t rows = StreamRaws(streams);
  layer->Dense(matrix, layer->Matrix(prefix + "fn", rows, uint64_t{streams.count} * layer->hidden()));
  layer->Dense(base, layer->Vector(prefix + "base", rows));
  layer->Dense(scale, layer->Vector(prefix + "scale", 3));
}

void MapLayerStreams(LayerMapper* layer) {
  MapStreams("hc_attn_", "attn_hc.", dense::kAttnStreams, dense::kAttnStreamsBase, dense::kAttnStreamsScale,
             layer);
  MapStreams("hc_ffn_", "ffn_hc.", dense::kFfnStreams, dense::kFfnStreamsBase, dense::kFfnStreamsScale,
             layer);
}

}  // namespace

// GLM-5.3-Flash: Kimi Delta Attention between latent attention without rope, whose indexer chooses among
// pools of keys; DeepSeek-V3's router; the final norm takes the mean of the streams.

namespace {

// Members as transformers 5 writes them; those of the published object take their place.
AttentionConfig ReadGlmDelta(HfFields* fields) {
  uint32_t dim = fields->Number("linear_head_dim", 1, kMaxHeadDim, 128);
  uint32_t heads = fields->Number("linear_num_heads", 1, kMaxHeads, 32);
  uint32_t kernel = fields->Number("linear_conv_kernel_dim", 1, kMaxConvKernel, 4);
  double floor = fields->Real("linear_lower_bound", -1e6, 0, -5);
  fields->Group("linear_attn_config", [&](HfFields* linear) {
    dim = linear->Number("head_dim", 1, kMaxHeadDim, dim);
    heads = linear->Number("num_heads", 1, kMaxHeads, heads);
    kernel = linear->Number("short_conv_kernel_size", 1, kMaxConvKernel, kernel);
    floor = linear->Real("gate_lower_bound", -1e6, 0, floor);
  });
  AttentionConfig delta = ChannelDelta(heads, dim, kernel);
  delta.delta.gate_rank = dim;
  delta.delta.decay_floor = static_cast<float>(floor);
  return delta;
}

IndexConfig ReadPooledIndex(HfFields* fields) {
  IndexConfig index;
  index.heads = fields->Number("index_n_heads", 1, kMaxHeads, 32);
  index.head_dim = fields->Number("index_head_dim", 2, kMaxHeadDim, 128);
  index.weighted = true;
  index.pooled = true;
  index.block = fields->Number("index_kpool", 1, kMaxRate, 16);
  const uint32_t positions = fields->Number("index_topk", 1, kMaxPosition, 2048);
  if (positions < index.block) {
    fields->Fail("index_topk", absl::StrCat("is ", positions, ", less than the ", index.block, " of a pool"));
  }
  index.top = positions / index.block + 1;
  // Without the positions behind the last pool a token might see nothing, not even itself.
  fields->RequireFlag("index_kpool_always_select_tail", true);
  return index;
}

}  // namespace

ModelConfig ReadGlm5Next(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("glm5_next_text", {.max_position = 202752, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  model.streams = ReadStreams(/*mean_output=*/true, fields);
  AttentionConfig full = ReadLatent({.norm_epsilon = model.norm_epsilon, .no_rope = true}, model, fields);
  if (full.latent.q_rank == 0) fields->Refuse("q_lora_rank");
  full.index = ReadPooledIndex(fields);
  const AttentionConfig delta = ReadGlmDelta(fields);
  const std::vector<std::string> types =
      ReadLayerTypes({"linear_attention", "full_attention", "indexed_attention"}, layers, fields);
  const std::vector<bool> shared = ReadSharedIndexers(layers, fields);
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(1, 1, &moe, fields);
  ReadLimit(&moe, fields);
  SetDeepseekFfns(3, moe, &model, fields);
  const std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (!sparse.empty()) SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth), &model);
  for (size_t i = 0; i < layers; ++i) {
    const bool linear = types.empty() ? i % 4 != 3 : types[i] == "linear_attention";
    model.layers[i].attention = linear ? delta : full;
    if (!linear) model.layers[i].attention.index.shared = shared[i];
    model.layers[i].moe.activation = moe.activation;
    model.layers[i].moe.activation_limit = moe.activation_limit;
  }
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapGlm5Next(const ModelConfig& config, TensorMapper* mapper) {
  const std::string base = "model.language_model.";
  mapper->IgnorePrefix("model.visual.");
  IgnorePredictionLayers(config, mapper, base + "layers.");
  MapEmbeddingAndHead(config, {base + "embed_tokens.weight", base + "norm", "lm_head"}, mapper);
  MapLayers(config, base + "layers.", mapper, [](LayerMapper* layer) {
    MapLayerStreams(layer);
    if (layer->attention().kind == AttentionKind::kGatedDelta) {
      MapChannelDelta("self_attn.", "o_proj", layer);
    } else {
      MapLatent(layer);
      MapIndexer(layer);
    }
    layer->DeepseekFfn();
  });
}

// DeepSeek-V4 (V4-Flash, V4-Pro): one KV head that is key and value at once, a window in every layer, and
// entries compressed of 4 positions, of which an indexer chooses, or of 128; experts named by tokens in the
// first layers.

namespace {

// Positions of an entry by layer; 0: a window alone.
std::vector<uint32_t> ReadRates(size_t layers, uint32_t* chosen_rate, HfFields* fields) {
  std::vector<uint32_t> rates = fields->Numbers("compress_ratios", kMaxRate);
  uint32_t sparse = 4;
  uint32_t heavy = 128;
  fields->Group("compress_rates", [&](HfFields* group) {
    sparse = group->Number("compressed_sparse_attention", 1, kMaxRate, sparse);
    heavy = group->Number("heavily_compressed_attention", 1, kMaxRate, heavy);
  });
  *chosen_rate = sparse;
  const std::vector<std::string> types = ReadLayerTypes(
      {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"}, layers, fields);
  if (!types.empty()) {
    rates.clear();
    for (const std::string& type : types) {
      rates.push_back(type == "sliding_attention"             ? 0
                      : type == "compressed_sparse_attention" ? sparse
                                                              : heavy);
    }
  }
  if (rates.size() < layers) {
    fields->Fail("compress_ratios", absl::StrCat("has ", rates.size(), " entries for ", layers, " layers"));
  }
  rates.resize(layers);  // layers that predict further tokens follow
  if (sparse == heavy) fields->Refuse("compress_rates");
  return rates;
}

AttentionConfig ReadShared(const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention = ReadHeads({.kv_heads = 1, .head_dim = 512}, model, fields);
  attention.kind = AttentionKind::kCompressed;
  if (attention.kv_heads != 1) fields->Refuse("num_key_value_heads");
  attention.qk_norm = QkNorm::kWeightedKey;
  attention.sinks = true;
  attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 128);
  CompressConfig& compress = attention.compress;
  compress.q_rank = fields->Number("q_lora_rank", 1, kMaxRank, 1024);
  compress.groups = fields->Number("o_groups", 1, attention.heads, 8);
  compress.o_rank = fields->Number("o_lora_rank", 1, kMaxRank, 1024);
  if (attention.heads % compress.groups != 0) fields->Refuse("o_groups");
  fields->RequireOff("attention_bias");
  return attention;
}

// The rope of layers with a window alone, or of those with entries.
RopeConfig ReadV4Rope(bool entries, uint32_t turned, uint32_t max_position, HfFields* fields) {
  RopeConfig rope;
  const double theta = fields->Real("rope_theta", 1e-3, 1e30, 10000);
  const double of_entries = fields->Real("compress_rope_theta", 1e-3, 1e30, 160000);
  const RopeConfig scaled = ReadRopeObject("rope_scaling", {}, turned, max_position, fields).rope;
  if (entries) rope = scaled;
  rope.theta = entries ? of_entries : theta;
  rope.attention_factor = 1;
  rope.dimensions = turned;
  rope.interleaved = true;
  return rope;
}

IndexConfig ReadEntryIndex(uint32_t rate, HfFields* fields) {
  IndexConfig index;
  index.heads = fields->Number("index_n_heads", 1, kMaxHeads, 64);
  index.head_dim = fields->Number("index_head_dim", 2, kMaxHeadDim, 128);
  index.top = fields->Number("index_topk", 1, kMaxPosition - 1, 512) + 1;
  index.block = rate;
  index.weighted = true;
  index.pooled = true;
  return index;
}

}  // namespace

ModelConfig ReadDeepseekV4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("deepseek_v4", {.max_position = 1048576}, fields);
  const size_t layers = model.layers.size();
  model.streams = ReadStreams(/*mean_output=*/false, fields);
  const AttentionConfig window = ReadShared(model, fields);
  const uint32_t turned = fields->Number("qk_rope_head_dim", 2, window.head_dim, 64);
  uint32_t chosen_rate = 0;
  const std::vector<uint32_t> rates = ReadRates(layers, &chosen_rate, fields);
  IndexConfig index = ReadEntryIndex(chosen_rate, fields);
  index.norm_epsilon = model.norm_epsilon;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSqrtSoftplusTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1.5));
  ReadLimit(&moe, fields);
  fields->RequireWord("scoring_func", "sqrtsoftplus");
  fields->RequireWord("topk_method", "noaux_tc");
  const uint32_t hashed = fields->Number("num_hash_layers", 0, kMaxLayers, 3);
  for (size_t i = 0; i < layers; ++i) {
    AttentionConfig& attention = model.layers[i].attention = window;
    const uint32_t rate = rates[i];
    SetRope(ReadV4Rope(rate > 0, turned, model.max_position, fields), &attention, fields);
    attention.compress.rate = rate;
    attention.compress.overlap = rate > 0 && rate == chosen_rate;
    if (attention.compress.overlap) attention.index = index;
    model.layers[i].moe = moe;
    model.layers[i].moe.token_experts = i < hashed;
    model.layers[i].moe.router_correction = i >= hashed;
  }
  fields->Skip("num_nextn_predict_layers");
  return model;
}

namespace {

// Maps `base`{wkv,wgate}.weight, ape and norm.weight, which make rows of `dim` values of `width` each.
struct CompressorNames {
  std::string_view values;
  std::string_view gates;
  std::string_view bias;
  std::string_view norm;
};
void MapCompressor(const std::string& base, const CompressorNames& names, uint32_t rate, uint32_t width,
                   uint32_t dim, LayerMapper* layer) {
  layer->Dense(names.values, layer->Matrix(base + "wkv.weight", width, layer->hidden()));
  layer->Dense(names.gates, layer->Matrix(base + "wgate.weight", width, layer->hidden()));
  layer->Dense(names.bias, layer->Matrix(base + "ape", rate, width));
  layer->Dense(names.norm, layer->Vector(base + "norm.weight", dim));
}

void MapV4Attention(LayerMapper* layer) {
  const AttentionConfig& a = layer->attention();
  const CompressConfig& c = a.compress;
  const uint32_t hidden = layer->hidden();
  layer->Dense(dense::kQDown, layer->Matrix("attn.wq_a.weight", c.q_rank, hidden));
  layer->Dense(dense::kQDownNorm, layer->Vector("attn.q_norm.weight", c.q_rank));
  layer->Dense(dense::kQ, layer->Matrix("attn.wq_b.weight", uint64_t{a.heads} * a.head_dim, c.q_rank));
  layer->Dense(dense::kK, layer->Matrix("attn.wkv.weight", a.head_dim, hidden));
  layer->Dense(dense::kKNorm, layer->Vector("attn.kv_norm.weight", a.head_dim));
  layer->Dense(dense::kSinks, layer->Vector("attn.attn_sink", a.heads));
  layer->Dense(dense::kOGroups, layer->Matrix("attn.wo_a.weight", uint64_t{c.groups} * c.o_rank,
                                              uint64_t{a.heads} / c.groups * a.head_dim));
  layer->Dense(dense::kO, layer->Matrix("attn.wo_b.weight", hidden, uint64_t{c.groups} * c.o_rank));
  if (c.rate == 0) return;
  MapCompressor("attn.compressor.",
                {dense::kEntryValues, dense::kEntryGates, dense::kEntryBias, dense::kEntryNorm}, c.rate,
                CompressedWidth(a), a.head_dim, layer);
  const IndexConfig& index = a.index;
  if (index.heads == 0) return;
  const std::string base = "attn.indexer.";
  layer->Dense(dense::kIndexQ,
               layer->Matrix(base + "wq_b.weight", uint64_t{index.heads} * index.head_dim, c.q_rank));
  layer->Dense(dense::kIndexWeights, layer->Matrix(base + "weights_proj.weight", index.heads, hidden));
  MapCompressor(base + "compressor.",
                {dense::kIndexK, dense::kIndexGates, dense::kIndexBias, dense::kIndexKNorm}, index.block,
                PooledWidth(a), index.head_dim, layer);
}

}  // namespace

void MapDeepseekV4(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  MapEmbeddingAndHead(config, {"embed.weight", "norm", "head"}, mapper);
  const uint32_t streams = config.streams.count;
  mapper->Dense(std::string(dense::kHeadStreams),
                mapper->Tensor("hc_head_fn", {streams, uint64_t{streams} * config.hidden}));
  mapper->Dense(std::string(dense::kHeadStreamsBase), mapper->Tensor("hc_head_base", {streams}));
  mapper->Dense(std::string(dense::kHeadStreamsScale), mapper->Tensor("hc_head_scale", {1}));
  MapLayers(config, "layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              MapLayerStreams(layer);
              MapV4Attention(layer);
              layer->Dense(dense::kRouter, layer->Matrix("ffn.gate.weight", moe.experts, layer->hidden()));
              if (moe.router_correction) {
                layer->Dense(dense::kRouterCorrection, layer->Vector("ffn.gate.bias", moe.experts));
              }
              if (moe.token_experts) {
                layer->Dense(dense::kTokenExperts,
                             layer->Numbers("ffn.gate.tid2eid", layer->vocab(), moe.top_k));
              }
              const FfnNames names = {.gate = "w1", .up = "w3", .down = "w2"};
              layer->Experts("ffn.experts.", names);
              if (moe.shared_width != 0) layer->SharedExpert("ffn.shared_experts.", names);
            },
            {.attention = "attn_norm", .ffn = "ffn_norm"});
}

}  // namespace sluice
