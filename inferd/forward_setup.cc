// What happens once: the refusal of what the forward pass lacks, and its memory.
#include <algorithm>

#include "common/status.h"
#include "inferd/forward.h"
#include "kernels/rope_table.h"

namespace sluice {
namespace {

struct Widths {
  uint64_t q = 0;
  uint64_t kv = 0;
};

Widths WidestAttention(const ModelConfig& config) {
  Widths widths;
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& a = layer.attention;
    widths.q = std::max(widths.q, uint64_t{a.heads} * a.head_dim);
    widths.kv = std::max(widths.kv, uint64_t{a.kv_heads} * a.head_dim);
  }
  return widths;
}

absl::Status Refuse(uint32_t layer, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat("layer ", layer, ": ", what, " is not implemented"));
}

absl::Status CheckAttention(uint32_t layer, const AttentionConfig& a) {
  if (a.kind != AttentionKind::kGrouped) {
    return Refuse(layer, a.kind == AttentionKind::kLatent ? "latent attention" : "gated delta attention");
  }
  if (a.rope.kind != RopeKind::kNone && a.rope.kind != RopeKind::kDefault &&
      a.rope.kind != RopeKind::kLinear) {
    return Refuse(layer, absl::StrCat("rope kind ", static_cast<int>(a.rope.kind)));
  }
  if (a.heads == 0 || a.kv_heads == 0 || a.head_dim == 0 || a.head_dim % 2 != 0 ||
      a.heads % a.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", a.heads, " heads over ", a.kv_heads,
                                                   " KV heads of ", a.head_dim, " values"));
  }
  return absl::OkStatus();
}

absl::Status CheckMixture(uint32_t layer, const MoeConfig& moe) {
  if (moe.experts == 0) {
    return Refuse(layer, "a dense FFN");
  }
  if (moe.shared_width > 0) {
    return Refuse(layer, "a shared expert");
  }
  if (moe.router != RouterKind::kSoftmaxTopK) {
    return Refuse(layer, absl::StrCat("router kind ", static_cast<int>(moe.router)));
  }
  if (moe.activation != Activation::kSilu) {
    return Refuse(layer, absl::StrCat("activation ", static_cast<int>(moe.activation)));
  }
  if (moe.top_k == 0 || moe.top_k > moe.experts || moe.expert_width == 0) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": top ", moe.top_k, " of ", moe.experts,
                                                   " experts of ", moe.expert_width, " neurons"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSupported(const ModelConfig& config) {
  if (config.norm != NormKind::kRms) {
    return absl::UnimplementedError("layer norm is not implemented");
  }
  if (config.layers.empty() || config.vocab == 0 || config.hidden == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a model of ", config.layers.size(),
                                                   " layers, vocabulary ", config.vocab, " and hidden size ",
                                                   config.hidden));
  }
  if (config.layers.size() > FetchQueue::kMaxLayers || MostExperts(config) > FetchQueue::kMaxExperts) {
    return absl::UnimplementedError(absl::StrCat(config.layers.size(), " layers of ", MostExperts(config),
                                                 " experts; the limits are ", FetchQueue::kMaxLayers, " and ",
                                                 FetchQueue::kMaxExperts));
  }
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    RETURN_IF_ERROR(CheckAttention(layer, config.layers[layer].attention));
    RETURN_IF_ERROR(CheckMixture(layer, config.layers[layer].moe));
  }
  return absl::OkStatus();
}

uint32_t LogitRowsFor(uint32_t vocab, uint32_t max_tokens) {
  constexpr uint64_t kLogitBytes = 32ull << 20;
  const uint64_t rows = kLogitBytes / (uint64_t{vocab} * sizeof(float));
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, max_tokens));
}

uint64_t ActivationBytes(const ModelConfig& config, const ForwardOptions& options) {
  const Widths widths = WidestAttention(config);
  const uint64_t top_k = LargestTopK(config);
  const uint64_t per_token = 2 * uint64_t{config.hidden} + 2 * widths.q + 2 * widths.kv +
                             MostExperts(config) + top_k * config.hidden + 2 * top_k;
  const uint64_t per_logit_row = uint64_t{config.vocab} + 2 * options.max_candidates + 1;
  return sizeof(float) * (options.max_tokens * per_token + options.logit_rows * per_logit_row);
}

Forward::Forward(const ModelConfig& config, const ForwardOptions& options, const Parts& parts)
    : config_(config),
      options_(options),
      backend_(parts.backend),
      queue_(&parts.backend->queue()),
      weights_(*parts.weights),
      kv_(*parts.kv),
      residency_(parts.residency),
      routing_(parts.routing),
      sparsity_(parts.sparsity),
      tap_(parts.tap),
      plan_(options.max_tokens, LargestTopK(config), MostExperts(config)) {
  works_.reserve(MostExperts(config));
}

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const ModelConfig& config,
                                                         const ForwardOptions& options, const Parts& parts) {
  RETURN_IF_ERROR(CheckSupported(config));
  std::unique_ptr<Forward> forward(new Forward(config, options, parts));
  RETURN_IF_ERROR(forward->Allocate());
  return forward;
}

absl::Status Forward::Allocate() {
  const uint64_t tokens = options_.max_tokens;
  const uint64_t logit_rows = options_.logit_rows;
  const uint64_t pairs = tokens * LargestTopK(config_);
  const Widths widths = WidestAttention(config_);
  const auto rows = [this](uint64_t count, uint64_t width, BufferKind kind, Rows* out) -> absl::Status {
    ASSIGN_OR_RETURN(const BufferId buffer, backend_->Allocate(count * width * sizeof(float), kind));
    *out = {{buffer, 0}, width};
    return absl::OkStatus();
  };
  const auto staging = [&rows](uint64_t count, BufferRef* out) -> absl::Status {
    Rows made;
    RETURN_IF_ERROR(rows(count, 1, BufferKind::kStaging, &made));
    *out = made.base;
    return absl::OkStatus();
  };
  constexpr BufferKind kActivations = BufferKind::kActivations;
  RETURN_IF_ERROR(rows(tokens, config_.hidden, kActivations, &x_));
  RETURN_IF_ERROR(rows(tokens, config_.hidden, kActivations, &normed_));
  RETURN_IF_ERROR(rows(tokens, widths.q, kActivations, &q_));
  RETURN_IF_ERROR(rows(tokens, widths.kv, kActivations, &k_));
  RETURN_IF_ERROR(rows(tokens, widths.kv, kActivations, &v_));
  RETURN_IF_ERROR(rows(tokens, widths.q, kActivations, &attended_));
  RETURN_IF_ERROR(rows(tokens, MostExperts(config_), kActivations, &scores_));
  RETURN_IF_ERROR(rows(pairs, config_.hidden, kActivations, &outputs_));
  RETURN_IF_ERROR(rows(logit_rows, config_.vocab, BufferKind::kStaging, &logits_));
  RETURN_IF_ERROR(staging(pairs, &expert_ids_));
  RETURN_IF_ERROR(staging(pairs, &expert_weights_));
  if (sparsity_->enabled()) {
    RETURN_IF_ERROR(staging(pairs, &active_));
  }
  RETURN_IF_ERROR(staging(logit_rows * options_.max_candidates, &top_ids_));
  RETURN_IF_ERROR(staging(logit_rows * options_.max_candidates, &top_values_));
  RETURN_IF_ERROR(staging(logit_rows, &log_sums_));
  for (const LayerConfig& layer : config_.layers) {
    const RopeConfig& rope = layer.attention.rope;
    const auto known = std::find_if(ropes_.begin(), ropes_.end(),
                                    [&rope](const Rope& other) { return other.config == rope; });
    rope_of_.push_back(static_cast<uint32_t>(known - ropes_.begin()));
    if (known == ropes_.end()) {
      ASSIGN_OR_RETURN(const BufferRef table, UploadRope(rope));
      ropes_.push_back({rope, table});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BufferRef> Forward::UploadRope(const RopeConfig& rope) {
  ASSIGN_OR_RETURN(const std::vector<float> table, ComputeRopeTable(rope, options_.context));
  if (table.empty()) {
    return BufferRef{};
  }
  const uint64_t bytes = table.size() * sizeof(float);
  ASSIGN_OR_RETURN(const BufferId buffer, backend_->Allocate(bytes, BufferKind::kTables));
  RETURN_IF_ERROR(queue_->Upload(table.data(), bytes, {buffer, 0}));
  return BufferRef{buffer, 0};
}

}  // namespace sluice
