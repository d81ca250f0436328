#include "common/model/mtp_layers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "common/model/hf_config.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// The layer of the model whose attention an MTP layer has.
enum class AttentionLike : uint8_t { kLast, kFull, kSliding };

// Tensor names of a family's MTP layers. Those without `base` of their own are numbered behind the model's
// layers.
struct MtpNames {
  const char* family;
  AttentionLike attention = AttentionLike::kLast;
  bool plus_one = false;       // the checkpoint holds the norms' weights minus one
  const char* base = nullptr;  // before the number of the MTP layer
  const char* parts = "";      // before the following names, if `base` is not
  const char* projection = "eh_proj.weight";
  const char* embed_norm = "enorm.weight";
  const char* hidden_norm = "hnorm.weight";
  const char* norm = "shared_head.norm.weight";
  const char* head = "shared_head.head.weight";
};
constexpr MtpNames kNames[] = {
    {"deepseek_v3"},
    {"deepseek_v32"},
    {"glm4_moe"},
    {"glm4_moe_lite"},
    {"glm_moe_dsa"},
    {"hy_v3"},
    {.family = "step3p5",
     .attention = AttentionLike::kSliding,
     .plus_one = true,
     .norm = "transformer.shared_head.norm.weight",
     .head = "transformer.shared_head.output.weight"},
    {.family = "mimo_v2_flash",
     .attention = AttentionLike::kSliding,
     .base = "model.mtp.layers.",
     .norm = "final_layernorm.weight",
     .head = ""},
    {.family = "qwen3_next",
     .attention = AttentionLike::kFull,
     .plus_one = true,
     .base = "mtp.layers.",
     .parts = "mtp.",
     .projection = "fc.weight",
     .embed_norm = "pre_fc_norm_embedding.weight",
     .hidden_norm = "pre_fc_norm_hidden.weight",
     .norm = "norm.weight",
     .head = ""},
    {.family = "qwen3_5_moe_text",
     .attention = AttentionLike::kFull,
     .plus_one = true,
     .base = "mtp.layers.",
     .parts = "mtp.",
     .projection = "fc.weight",
     .embed_norm = "pre_fc_norm_embedding.weight",
     .hidden_norm = "pre_fc_norm_hidden.weight",
     .norm = "norm.weight",
     .head = ""},
};

const MtpNames* NamesOf(const ModelConfig& config) {
  const auto found = std::find_if(std::begin(kNames), std::end(kNames),
                                  [&config](const MtpNames& names) { return config.family == names.family; });
  return found == std::end(kNames) ? nullptr : found;
}

// Start of the names of the MTP layer at index `layer` of a model of `model_layers`.
std::string BaseOf(const MtpNames& names, uint32_t model_layers, const std::string& prefix, uint32_t layer) {
  return names.base != nullptr ? absl::StrCat(names.base, layer - model_layers, ".")
                               : absl::StrCat(prefix, layer, ".");
}

// Start of the names of what surrounds that layer.
std::string PartsOf(const MtpNames& names, const std::string& base) {
  return names.parts[0] != '\0' ? names.parts : base;
}

// Prefixes of the layers' names in the folders of all families.
constexpr const char* kPrefixes[] = {"model.layers.", "language_model.model.layers.",
                                     "model.language_model.layers."};

// Number of MTP layers that have a projection of the right shape.
uint32_t CountLayers(const Checkpoint& checkpoint, const MtpNames& names, const ModelConfig& config,
                     const std::string& prefix) {
  const uint32_t model_layers = static_cast<uint32_t>(config.layers.size());
  uint32_t count = 0;
  while (count < kMaxMtpLayers) {
    const std::string base = BaseOf(names, model_layers, prefix, model_layers + count);
    const CheckpointTensor* tensor = checkpoint.Find(PartsOf(names, base) + names.projection);
    // A projection that the layers share names the first of them alone.
    const bool has_norm = checkpoint.Find(base + "input_layernorm.weight") != nullptr;
    if (tensor == nullptr || !has_norm || (names.parts[0] != '\0' && count == 1)) break;
    ++count;
  }
  return count;
}

std::optional<LayerConfig> LayerLike(AttentionLike like, const ModelConfig& config) {
  for (size_t i = config.layers.size(); i-- > 0;) {
    const AttentionConfig& a = config.layers[i].attention;
    const bool fits = like == AttentionLike::kLast ||
                      (!IsRecurrent(a.kind) && (like == AttentionLike::kFull) == (a.sliding_window == 0));
    if (fits && HasAttention(config.layers[i]) && !IsRecurrent(a.kind)) return config.layers[i];
  }
  return std::nullopt;
}

// Sets the limit of a dense FFN's activation, if the family has such limits: the reference class counts them
// by the number of the MTP layer, from the model's first layer on. Published models have none in either.
void SetLimitOf(const ModelConfig& config, uint32_t number, MoeConfig* dense) {
  if (number >= config.layers.size()) return;
  const MoeConfig& counted = config.layers[number].moe;
  if (counted.activation != Activation::kClampedSilu) return;
  dense->activation = Activation::kClampedSilu;
  dense->activation_limit = counted.shared_apart ? counted.shared_limit : counted.activation_limit;
}

// Describes MTP layer `number` with these tensor names: dense if it has a dense FFN's matrix, else sparse
// like the model's last layer with experts.
std::optional<LayerConfig> LayerOf(const Checkpoint& checkpoint, const MtpNames& names,
                                   const ModelConfig& config, uint32_t number, const std::string& base) {
  std::optional<LayerConfig> layer = LayerLike(names.attention, config);
  if (!layer.has_value()) return std::nullopt;
  AttentionConfig& attention = layer->attention;
  const CheckpointTensor* q = checkpoint.Find(base + "self_attn.q_proj.weight");
  if (names.attention == AttentionLike::kSliding && q != nullptr && q->shape.size() == 2) {
    // Step-3.5's may have the query heads of the model's full layers.
    const uint64_t heads = q->shape[0] / attention.head_dim;
    if (heads == 0 || heads > kMaxHeads || heads % attention.kv_heads != 0) return std::nullopt;
    attention.heads = static_cast<uint32_t>(heads);
  }
  if (const CheckpointTensor* up = checkpoint.Find(base + "mlp.up_proj.weight"); up != nullptr) {
    if (up->shape.size() != 2 || up->shape[0] == 0 || up->shape[0] > kMaxWidth) return std::nullopt;
    layer->moe = {};
    layer->moe.dense_width = static_cast<uint32_t>(up->shape[0]);
    SetLimitOf(config, number, &layer->moe);
  } else {
    const auto sparse = std::find_if(config.layers.rbegin(), config.layers.rend(),
                                     [](const LayerConfig& l) { return l.moe.experts > 0; });
    if (sparse == config.layers.rend()) return std::nullopt;
    layer->moe = sparse->moe;
  }
  IndexConfig& index = attention.index;
  index.shared = false;
  if (checkpoint.Find(base + "self_attn.indexer.wk.weight") == nullptr) index = {};
  return layer;
}

// True if both tensors have equal values in some lines all over them.
absl::StatusOr<bool> IsCopy(const Checkpoint& checkpoint, const CheckpointTensor& copy,
                            const CheckpointTensor& of) {
  constexpr uint64_t kLines = 16;
  if (copy.shape != of.shape || copy.type != of.type || copy.by_columns != of.by_columns ||
      copy.shape.size() != 2) {
    return false;
  }
  const uint64_t length = copy.line_length();
  const uint64_t lines = copy.by_columns ? copy.shape.back() : copy.shape.front();
  std::vector<std::byte> a(length * ElementBytes(copy.type));
  std::vector<std::byte> b(a.size());
  for (uint64_t i = 0; i < std::min(lines, kLines); ++i) {
    const TensorRect line{i * lines / std::min(lines, kLines), 1, 0, length};
    RETURN_IF_ERROR(checkpoint.Read(copy, line, absl::MakeSpan(a)));
    RETURN_IF_ERROR(checkpoint.Read(of, line, absl::MakeSpan(b)));
    if (a != b) return false;
  }
  return true;
}

// True if the layer's embedding and head are absent or the model's.
absl::StatusOr<bool> SharesHead(const Checkpoint& checkpoint, const MtpNames& names, const std::string& base,
                                const std::string& prefix, bool tied) {
  const std::string model = prefix.substr(0, prefix.size() - std::string_view("layers.").size());
  const std::string outer = model.substr(0, model.size() - std::string_view("model.").size());
  const std::string embed = model + "embed_tokens.weight";
  const std::array<std::pair<std::string, std::string>, 2> copies = {
      {{base + "embed_tokens.weight", embed}, {base + names.head, tied ? embed : outer + "lm_head.weight"}}};
  for (const auto& [copy, of] : copies) {
    const CheckpointTensor* tensor = checkpoint.Find(copy);
    const CheckpointTensor* original = checkpoint.Find(of);
    if (tensor == nullptr) continue;
    if (original == nullptr) return false;
    ASSIGN_OR_RETURN(const bool same, IsCopy(checkpoint, *tensor, *original));
    if (!same) return false;
  }
  return true;
}

}  // namespace

absl::Status AddMtpLayers(const Checkpoint& checkpoint, ModelConfig* config, std::string* why) {
  why->clear();
  const MtpNames* names = NamesOf(*config);
  if (names == nullptr) return absl::OkStatus();
  const auto prefix = std::find_if(std::begin(kPrefixes), std::end(kPrefixes), [&](const char* p) {
    return checkpoint.Find(absl::StrCat(p, "0.input_layernorm.weight")) != nullptr;
  });
  if (prefix == std::end(kPrefixes)) return absl::OkStatus();
  const uint32_t count = CountLayers(checkpoint, *names, *config, *prefix);
  ModelConfig with = *config;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t model_layers = static_cast<uint32_t>(config->layers.size());
    const std::string own = BaseOf(*names, model_layers, *prefix, model_layers + i);
    const std::optional<LayerConfig> layer = LayerOf(checkpoint, *names, *config, i, own);
    ASSIGN_OR_RETURN(const bool shares,
                     SharesHead(checkpoint, *names, own, *prefix, config->tied_embeddings));
    if (!layer.has_value() || !shares) {
      *why = absl::StrCat("MTP layer ", i,
                          shares ? " is of no known form" : " has an embedding or head of its own");
      return absl::OkStatus();
    }
    with.layers.push_back(*layer);
    with.mtp_layers++;
  }
  if (count == 0) return absl::OkStatus();
  // Folders of converters may hold a part of such a layer.
  if (const absl::StatusOr<SourceMap> map = MapTensors(with, checkpoint); !map.ok()) {
    const bool model_maps = MapTensors(*config, checkpoint).ok();
    if (model_maps) *why = absl::StrCat("MTP layers are left out: ", std::string(map.status().message()));
    return absl::OkStatus();
  }
  *config = std::move(with);
  return absl::OkStatus();
}

std::string LayerBase(const ModelConfig& config, const std::string& prefix, uint32_t layer) {
  const MtpNames* names = IsMtpLayer(config, layer) ? NamesOf(config) : nullptr;
  return names == nullptr ? absl::StrCat(prefix, layer, ".")
                          : BaseOf(*names, ModelLayers(config), prefix, layer);
}

void MapMtpTensors(const ModelConfig& config, const std::string& prefix, uint32_t layer,
                   TensorMapper* mapper) {
  const MtpNames* names = IsMtpLayer(config, layer) ? NamesOf(config) : nullptr;
  if (names == nullptr) return;
  const std::string base = LayerBase(config, prefix, layer);
  const std::string parts = PartsOf(*names, base);
  const uint32_t hidden = config.hidden;
  const auto dense = [&](std::string_view name, const SourceMatrix& matrix) {
    mapper->Dense(dense::LayerName(layer, name), matrix);
  };
  const auto norm = [&](std::string_view name, const char* tensor) {
    const SourceMatrix weight = mapper->Tensor(parts + tensor, {hidden});
    dense(name, names->plus_one ? PlusOne(weight) : weight);
  };
  const SourceMatrix projection = mapper->Tensor(parts + names->projection, {hidden, 2 * uint64_t{hidden}});
  dense(dense::kMtpEmbed, Columns(projection, 0, hidden));
  dense(dense::kMtpHidden, Columns(projection, hidden, hidden));
  norm(dense::kMtpEmbedNorm, names->embed_norm);
  norm(dense::kMtpHiddenNorm, names->hidden_norm);
  norm(dense::kMtpNorm, names->norm);
  mapper->Ignore(base + "embed_tokens.weight");
  if (names->head[0] != '\0') mapper->Ignore(base + names->head);
}

}  // namespace sluice
