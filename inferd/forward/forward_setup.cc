// Setup of the forward pass: the check for unsupported features, and its memory.

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "inferd/forward/forward.h"
#include "inferd/forward/mtp_drafter.h"
#include "inferd/model/model_shapes.h"
#include "kernels/state_calls.h"

namespace sluice::inferd {
namespace {

absl::Status Refuse(uint32_t layer, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat("layer ", layer, ": ", what, " is not implemented"));
}

absl::Status Contradiction(uint32_t layer, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", what));
}

absl::Status CheckGrouped(uint32_t layer, const AttentionConfig& a) {
  if (a.heads == 0 || a.kv_heads == 0 || a.head_dim == 0 || a.head_dim % 2 != 0 ||
      a.heads % a.kv_heads != 0) {
    return Contradiction(
        layer, absl::StrCat(a.heads, " heads over ", a.kv_heads, " KV heads of ", a.head_dim, " values"));
  }
  if (a.rope.kind != RopeKind::kNone && a.rope.dimensions > a.head_dim) {
    return Contradiction(layer, absl::StrCat("rope over ", a.rope.dimensions, " of ", a.head_dim, " values"));
  }
  if (ValueDim(a) > a.head_dim || ValueDim(a) % 2 != 0 || (a.value_is_key && ValueDim(a) != a.head_dim)) {
    return Contradiction(layer, absl::StrCat("values of ", ValueDim(a), " beside keys of ", a.head_dim));
  }
  return absl::OkStatus();
}

absl::Status CheckLatent(uint32_t layer, const AttentionConfig& a) {
  const LatentConfig& l = a.latent;
  if (a.heads == 0 || l.kv_rank == 0 || l.nope_dim == 0 || l.value_dim == 0 ||
      (a.rope.kind == RopeKind::kNone) != (a.rope.dimensions == 0) ||
      a.head_dim != l.nope_dim + a.rope.dimensions || (l.kv_rank + a.rope.dimensions) % 2 != 0) {
    return Contradiction(layer, absl::StrCat("latent attention of ", a.heads, " heads of ", a.head_dim, " = ",
                                             l.nope_dim, " + ", a.rope.dimensions, " values, values of ",
                                             l.value_dim, ", rank ", l.kv_rank));
  }
  if (a.qk_norm != QkNorm::kNone || a.sinks || a.chunk != 0 || a.clip_qkv != 0 || a.qkv_bias ||
      a.output_bias || a.value_norm || a.value_is_key || a.value_dim != 0 || a.value_scale != 1) {
    return Refuse(layer, "latent attention with norms, sinks, chunks, clipping or biases");
  }
  return absl::OkStatus();
}

absl::Status CheckDelta(uint32_t layer, const DeltaConfig& d) {
  if (d.key_heads == 0 || d.value_heads == 0 || d.value_heads % d.key_heads != 0 || d.key_dim == 0 ||
      d.value_dim == 0 || d.conv_kernel == 0) {
    return Contradiction(layer, absl::StrCat("gated delta attention of ", d.key_heads, " key heads of ",
                                             d.key_dim, ", ", d.value_heads, " value heads of ", d.value_dim,
                                             ", convolution over ", d.conv_kernel));
  }
  return absl::OkStatus();
}

absl::Status CheckSelective(uint32_t layer, const SelectiveConfig& s) {
  if (s.channels == 0 || s.state == 0 || s.step_rank == 0 || s.conv_kernel < 2) {
    return Contradiction(
        layer, absl::StrCat("a selective state of ", s.channels, " channels of ", s.state, ", steps of rank ",
                            s.step_rank, ", convolution over ", s.conv_kernel));
  }
  return absl::OkStatus();
}

absl::Status CheckMamba(uint32_t layer, const MambaConfig& m) {
  if (m.heads == 0 || m.head_dim == 0 || m.groups == 0 || m.heads % m.groups != 0 || m.state == 0 ||
      m.conv_kernel == 0) {
    return Contradiction(layer,
                         absl::StrCat("mamba of ", m.heads, " heads of ", m.head_dim, " in ", m.groups,
                                      " groups, states of ", m.state, ", convolution over ", m.conv_kernel));
  }
  return absl::OkStatus();
}

absl::Status CheckCompressed(uint32_t layer, const AttentionConfig& a) {
  const CompressConfig& c = a.compress;
  if (a.heads == 0 || a.kv_heads != 1 || a.head_dim == 0 || a.head_dim % 2 != 0 || a.sliding_window == 0 ||
      c.q_rank == 0 || c.groups == 0 || a.heads % c.groups != 0 || c.o_rank == 0 ||
      a.qk_norm != QkNorm::kWeightedKey || a.rope.dimensions > a.head_dim) {
    return Contradiction(
        layer, absl::StrCat("compressed attention of ", a.heads, " heads of ", a.head_dim, " values over ",
                            a.kv_heads, " KV heads and a window of ", a.sliding_window, ", q of rank ",
                            c.q_rank, ", output of rank ", c.o_rank, " in ", c.groups, " groups"));
  }
  if (a.rope.kind == RopeKind::kLongRope || a.rope.kind == RopeKind::kNone || a.chunk != 0 ||
      a.clip_qkv != 0 || a.qkv_bias || a.output_bias || a.output_gate || a.value_norm || a.value_dim != 0 ||
      a.value_scale != 1 || a.temperature_scale != 0) {
    return Refuse(layer, "compressed attention with long rope or none, chunks, clipping, biases or gates");
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(uint32_t layer, const AttentionConfig& a) {
  switch (a.kind) {
    case AttentionKind::kGatedDelta:
      return CheckDelta(layer, a.delta);
    case AttentionKind::kMamba:
      return CheckMamba(layer, a.mamba);
    case AttentionKind::kShortConv:
      return a.conv.width > 0 && a.conv.kernel > 1
                 ? absl::OkStatus()
                 : Contradiction(layer, absl::StrCat("a convolution over ", a.conv.kernel, " rows of ",
                                                     a.conv.width, " values"));
    case AttentionKind::kSelective:
      return CheckSelective(layer, a.selective);
    case AttentionKind::kNone:
      return absl::OkStatus();
    case AttentionKind::kCompressed:
      return CheckCompressed(layer, a);
    case AttentionKind::kGrouped:
    case AttentionKind::kLatent:
      break;
  }
  if (a.rope.kind == RopeKind::kDynamic) {
    return Refuse(layer, "dynamic rope");
  }
  if (a.rope.kind == RopeKind::kLongRope && a.rope.original_max_position == 0) {
    return Contradiction(layer, "long rope without original_max_position");
  }
  return a.kind == AttentionKind::kLatent ? CheckLatent(layer, a) : CheckGrouped(layer, a);
}

// The layers with n-grams are numbered in their order.
absl::Status CheckNgrams(const ModelConfig& config, uint32_t layer, uint32_t* number) {
  const NgramConfig& ngrams = config.layers[layer].ngrams;
  if (ngrams.size == 0) {
    return absl::OkStatus();
  }
  const uint64_t named = NgramHash(ngrams, config.vocab).rows();
  if (ngrams.layer != (*number)++ || ngrams.rows < named) {
    return Contradiction(
        layer, absl::StrCat("n-grams of layer ", ngrams.layer, " among them, whose hashes name ", named,
                            " rows of a table of ", ngrams.rows));
  }
  if (ngrams.size > StepBatch::kTokensBefore + 1 || NgramReach(ngrams) >= kMaxConvKernel) {
    return Refuse(layer, absl::StrCat("n-grams of ", ngrams.size, " tokens, convolved over ",
                                      NgramReach(ngrams) + 1, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckMoeLayer(uint32_t layer, const MoeConfig& moe) {
  if (moe.experts == 0) {
    return absl::OkStatus();
  }
  if (moe.top_k == 0 || moe.top_k > moe.experts || moe.expert_width == 0) {
    return Contradiction(layer, absl::StrCat("top ", moe.top_k, " of ", moe.experts, " experts of ",
                                             moe.expert_width, " neurons"));
  }
  if (moe.groups > 0 &&
      (moe.experts % moe.groups != 0 || moe.top_groups == 0 || moe.top_groups > moe.groups ||
       moe.top_k > uint64_t{moe.top_groups} * (moe.experts / moe.groups))) {
    return Contradiction(layer, absl::StrCat("top ", moe.top_k, " of ", moe.experts, " experts in the best ",
                                             moe.top_groups, " of ", moe.groups, " groups"));
  }
  if (moe.shared_gate && moe.shared_width == 0) {
    return Contradiction(layer, "a gate of no shared expert");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSupported(const ModelConfig& config) {
  if (config.layers.empty() || config.vocab == 0 || config.hidden == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a model of ", config.layers.size(),
                                                   " layers, vocabulary ", config.vocab, " and hidden size ",
                                                   config.hidden));
  }
  if (config.layers.size() > FetchQueue::kMaxLayers || MaxExperts(config) > FetchQueue::kMaxExperts) {
    return absl::UnimplementedError(absl::StrCat(config.layers.size(), " layers of ", MaxExperts(config),
                                                 " experts; the limits are ", FetchQueue::kMaxLayers, " and ",
                                                 FetchQueue::kMaxExperts));
  }
  uint32_t ngram_layers = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const LayerConfig& parts = config.layers[layer];
    if (HasStreams(config) && (NormsOutputs(config, parts) || parts.parallel)) {
      return Refuse(layer, "residual streams with norms or factors of outputs, or an FFN beside attention");
    }
    RETURN_IF_ERROR(CheckNgrams(config, layer, &ngram_layers));
    RETURN_IF_ERROR(CheckAttention(layer, config.layers[layer].attention));
    RETURN_IF_ERROR(CheckMoeLayer(layer, config.layers[layer].moe));
    if (!HasFfn(config.layers[layer]) &&
        (!HasAttention(config.layers[layer]) || config.layers[layer].layer_scale)) {
      return Contradiction(layer, "neither attention nor an FFN, or a factor without an FFN");
    }
  }
  return absl::OkStatus();
}

uint32_t LogitRowsFor(uint32_t vocab, uint32_t max_tokens) {
  constexpr uint64_t kLogitBytes = 32ull << 20;
  const uint64_t rows = kLogitBytes / (uint64_t{vocab} * sizeof(float));
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, max_tokens));
}

namespace {

bool AnyNormsOutputs(const ModelConfig& config) {
  return HasStreams(config) ||
         std::any_of(config.layers.begin(), config.layers.end(),
                     [&config](const LayerConfig& layer) { return NormsOutputs(config, layer); });
}

// Values of the residual of a row.
uint64_t ResidualWidth(const ModelConfig& config) { return uint64_t{config.streams.count} * config.hidden; }

// Values of a row that residual streams need beside them.
uint64_t StreamWidth(const ModelConfig& config) {
  return HasStreams(config)
             ? uint64_t{config.hidden} + StreamRaws(config.streams) + 2 * StreamFactors(config.streams)
             : 0;
}

// Values of a row of the normed streams and of their gates, each; 0 without gates.
uint64_t GatesWidth(const ModelConfig& config) { return config.streams.rank > 0 ? ResidualWidth(config) : 0; }

uint64_t WidestNgrams(const ModelConfig& config) {
  uint64_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    widest = std::max<uint64_t>(widest, NgramWidth(layer.ngrams));
  }
  return widest;
}

// Experts that a row's token names.
uint64_t FixedWidth(const ModelConfig& config) {
  uint64_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    widest = std::max<uint64_t>(widest, layer.moe.token_experts ? layer.moe.top_k : 0);
  }
  return widest;
}

bool AnyLate(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerConfig& layer) { return layer.late_experts; });
}

bool AnyBeside(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return layer.moe.dense_ffn_width > 0 || layer.moe.shared_apart;
  });
}

// Returns the layer's rope; empty if the layer rotates nothing.
RopeConfig RopeOf(const LayerConfig& layer) {
  const bool none = IsRecurrent(layer.attention.kind) || !HasAttention(layer) ||
                    layer.attention.rope.kind == RopeKind::kNone;
  return none ? RopeConfig{.kind = RopeKind::kNone} : layer.attention.rope;
}

// Number of values of one position over all distinct tables.
uint64_t RopeValuesPerPosition(const ModelConfig& config) {
  std::vector<RopeConfig> known;
  uint64_t values = 0;
  for (const LayerConfig& layer : config.layers) {
    const RopeConfig rope = RopeOf(layer);
    if (rope.kind != RopeKind::kNone && std::find(known.begin(), known.end(), rope) == known.end()) {
      known.push_back(rope);
      values += uint64_t{rope.dimensions} * (rope.kind == RopeKind::kLongRope ? 2 : 1);
    }
  }
  return values;
}

}  // namespace

uint64_t ActivationBytes(const ModelConfig& config, const ForwardOptions& options) {
  const AttentionWidths w = WidestAttention(config);
  const uint64_t ranks = MaxRanks(config);
  const uint64_t attention = w.q + w.k + w.v + w.gate + w.q_low + w.latent + w.absorbed + w.attended +
                             2 * w.state_heads + w.index_q + w.index_k + w.index_weights + w.index_gates +
                             2 * w.entries + WidestChoice(config, options.context);
  const uint64_t widest = std::max(config.hidden, ExpertHidden(config));
  const uint64_t mixture =
      MaxRouted(config) + 1 + 3 * ranks + ranks * widest * (AnyScalesInputs(config) ? 2 : 1);
  const uint64_t sums = uint64_t{config.hidden} * ((AnyNormsOutputs(config) ? 1 : 0) +
                                                   (AnyBeside(config) ? 1 : 0) + (AnyLate(config) ? 1 : 0)) +
                        2 * uint64_t{config.latent_width};
  const uint64_t residual = ResidualWidth(config);
  const uint64_t ahead = options.look_ahead || options.draft_tokens ? residual + ranks : 0;
  const uint64_t drafts = config.mtp_layers > 0 ? 2 * uint64_t{config.hidden} : 0;
  const uint64_t ngrams = WidestNgrams(config) > 0 ? WidestNgrams(config) + 2 * residual : 0;
  const uint64_t per_token = residual + config.hidden + drafts + StreamWidth(config) +
                             2 * GatesWidth(config) + ngrams + FixedWidth(config) + attention + mixture +
                             sums + ahead;
  const uint64_t per_logit_row = uint64_t{config.vocab} + 2 * options.max_candidates + 1;
  return sizeof(float) * (options.max_tokens * per_token + options.logit_rows * per_logit_row +
                          options.context * RopeValuesPerPosition(config)) +
         MtpDrafter::Bytes(config, options) + RowSource::DeviceBytes(config, options.max_tokens);
}

uint64_t DeferredBytes(const ModelConfig& config, const ForwardOptions& options) {
  return 2 * config.layers.size() * options.max_tokens * MaxRanks(config) * sizeof(float);
}

Forward::Forward(const ModelConfig& config, const ForwardOptions& options, const Parts& parts)
    : config_(config),
      options_(options),
      backend_(parts.backend),
      parts_(&parts.backend->queue()),
      queue_(parts.backend->queue().RunsAtCall() ? static_cast<Queue*>(&parts_) : &parts.backend->queue()),
      weights_(*parts.weights),
      kv_(*parts.kv),
      states_(*parts.states),
      experts_(parts.experts),
      row_source_(parts.rows),
      residency_(parts.residency),
      routing_(parts.routing),
      sparsity_(parts.sparsity),
      observer_(parts.observer),
      plan_(options.max_tokens, MaxRanks(config), MaxExperts(config)),
      work_(config, parts.weights->layers(), *parts.sparsity, plan_),
      deferred_plan_(options.max_tokens, MaxRanks(config), MaxExperts(config)),
      draft_({options.max_sequences, options.context, options.logit_rows}, queue_) {
  if (experts_->WantsScores()) {
    router_scores_ = std::make_unique<RouterScores>(options.max_tokens, MaxExperts(config));
    score_rows_.reserve(options.max_tokens);
  }
}

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const ModelConfig& config,
                                                         const ForwardOptions& options, const Parts& parts) {
  RETURN_IF_ERROR(CheckSupported(config));
  std::unique_ptr<Forward> forward(new Forward(config, options, parts));
  RETURN_IF_ERROR(forward->Allocate());
  if (parts.cpu != nullptr) {
    ASSIGN_OR_RETURN(forward->cpu_, CpuWork::Create(config, options.max_tokens, parts.sparsity->enabled(),
                                                    {parts.backend, parts.cpu, &parts.weights->layers()}));
  }
  return forward;
}

absl::Status Forward::Allocate() {
  RETURN_IF_ERROR(AllocateRows());
  for (const LayerConfig& layer : config_.layers) {
    RETURN_IF_ERROR(AddRope(RopeOf(layer)));
  }
  ngram_ids_.resize(WidestNgrams(config_) > 0 ? options_.max_tokens : 0);
  std::iota(ngram_ids_.begin(), ngram_ids_.end(), 0);
  return absl::OkStatus();
}

absl::Status Forward::AllocateRows() {
  const uint64_t tokens = options_.max_tokens;
  const uint64_t logit_rows = options_.logit_rows;
  const uint64_t pairs = tokens * MaxRanks(config_);
  const uint64_t widest = std::max(config_.hidden, ExpertHidden(config_));
  const uint64_t scaled_width = AnyScalesInputs(config_) ? config_.hidden : 0;
  const AttentionWidths w = WidestAttention(config_);
  Rows chosen;
  struct Need {
    Rows* rows;
    uint64_t count;
    uint64_t width;
  };
  const Need activations[] = {
      {&x_, tokens, ResidualWidth(config_)},
      {&block_in_, HasStreams(config_) ? tokens : 0, config_.hidden},
      {&stream_raws_, HasStreams(config_) ? tokens : 0, StreamRaws(config_.streams)},
      {&attn_factors_, HasStreams(config_) ? tokens : 0, StreamFactors(config_.streams)},
      {&ffn_factors_, HasStreams(config_) ? tokens : 0, StreamFactors(config_.streams)},
      {&streams_normed_, tokens, GatesWidth(config_)},
      {&stream_gates_, tokens, GatesWidth(config_)},
      {&ngram_values_, tokens, WidestNgrams(config_)},
      {&ngram_terms_, WidestNgrams(config_) > 0 ? tokens : 0, 2 * ResidualWidth(config_)},
      {&fixed_, tokens, FixedWidth(config_)},
      {&normed_, tokens, config_.hidden},
      {&q_, tokens, w.q},
      {&k_, tokens, w.k},
      {&v_, tokens, w.v},
      {&gate_, tokens, w.gate},
      {&q_low_, tokens, w.q_low},
      {&latent_, tokens, w.latent},
      {&absorbed_, tokens, w.absorbed},
      {&attended_, tokens, w.attended},
      {&beta_, tokens, w.state_heads},
      {&decay_, tokens, w.state_heads},
      {&index_q_, tokens, w.index_q},
      {&index_k_, tokens, w.index_k},
      {&index_weights_, tokens, w.index_weights},
      {&index_gates_, tokens, w.index_gates},
      {&entry_values_, tokens, w.entries},
      {&entry_gates_, tokens, w.entries},
      {&chosen, tokens, WidestChoice(config_, options_.context)},
      {&scores_, tokens, MaxRouted(config_)},
      {&shared_scores_, tokens, 1},
      {&scaled_, pairs, scaled_width},
      {&outputs_, pairs, widest},
      {&latent_in_, tokens, config_.latent_width},
      {&latent_sums_, tokens, config_.latent_width},
      {&late_, AnyLate(config_) ? tokens : 0, config_.hidden},
      {&parallel_ffn_, AnyBeside(config_) ? tokens : 0, config_.hidden},
      {&sums_, AnyNormsOutputs(config_) ? tokens : 0, config_.hidden},
      {&logits_, logit_rows, config_.vocab},
      {&ahead_, options_.look_ahead || options_.draft_tokens ? tokens : 0, ResidualWidth(config_)},
      {&mtp_x_, config_.mtp_layers > 0 ? tokens : 0, config_.hidden},
      {&mtp_embed_, config_.mtp_layers > 0 ? tokens : 0, config_.hidden},
  };
  for (const Need& need : activations) {
    if (need.count * need.width > 0) {
      ASSIGN_OR_RETURN(const BufferId buffer,
                       backend_->Allocate(need.count * need.width * sizeof(float), BufferKind::kActivations));
      *need.rows = {{buffer, 0}, need.width};
    }
  }
  chosen_ = chosen.base;
  const auto staging = [this](uint64_t count, BufferRef* out) -> absl::Status {
    ASSIGN_OR_RETURN(const BufferId buffer, backend_->Allocate(count * sizeof(float), BufferKind::kStaging));
    *out = {buffer, 0};
    return absl::OkStatus();
  };
  if (!queue_->RunsAtCall()) {
    const uint64_t of_all = config_.layers.size() * pairs;
    ASSIGN_OR_RETURN(deferred_choices_.buffer,
                     backend_->Allocate(DeferredBytes(config_, options_), BufferKind::kActivations));
    RETURN_IF_ERROR(staging(2 * of_all, &deferred_staging_));
    RETURN_IF_ERROR(staging(of_all, &deferred_active_));
    deferred_.reserve(config_.layers.size());
    early_lead_ids_.reserve(LargestTopK(config_));
    early_lead_rows_.reserve(MaxExperts(config_));
  }
  if (backend_->HostRead(logits_.base, sizeof(float)) == nullptr) {
    whole_logits_.resize(logit_rows * config_.vocab);
  }
  RETURN_IF_ERROR(staging(pairs, &expert_ids_));
  RETURN_IF_ERROR(staging(pairs, &expert_weights_));
  if (sparsity_->enabled()) {
    RETURN_IF_ERROR(staging(pairs, &active_));
  }
  if (options_.look_ahead || options_.draft_tokens) {
    RETURN_IF_ERROR(staging(pairs, &ahead_weights_));
  }
  RETURN_IF_ERROR(staging(logit_rows * options_.max_candidates, &top_ids_));
  RETURN_IF_ERROR(staging(logit_rows * options_.max_candidates, &top_values_));
  return staging(logit_rows, &log_sums_);
}

// Adds the next layer's tables; equal tables are made once.
absl::Status Forward::AddRope(const RopeConfig& rope) {
  const auto known =
      std::find_if(ropes_.begin(), ropes_.end(), [&rope](const Rope& other) { return other.config == rope; });
  rope_of_.push_back(static_cast<uint32_t>(known - ropes_.begin()));
  if (known != ropes_.end()) {
    return absl::OkStatus();
  }
  Rope made{rope, {}, {}};
  ASSIGN_OR_RETURN(made.short_texts,
                   RopeRows::Create(rope, /*long_texts=*/false, options_.context, backend_));
  if (rope.kind == RopeKind::kLongRope) {
    ASSIGN_OR_RETURN(made.long_texts,
                     RopeRows::Create(rope, /*long_texts=*/true, options_.context, backend_));
  }
  ropes_.push_back(std::move(made));
  return absl::OkStatus();
}

// Extends the tables to the positions of the batch and of its draft tokens.
absl::Status Forward::ReachPositions(const StepBatch& batch) {
  uint32_t end = 0;
  for (const SequenceRows& text : batch.sequences()) {
    end = std::max(end, text.first_position + text.rows + 1);
  }
  end = std::min(end, options_.context);
  for (Rope& rope : ropes_) {
    RETURN_IF_ERROR(rope.short_texts.Reach(end, queue_));
    if (rope.long_texts.has_value()) {
      RETURN_IF_ERROR(rope.long_texts->Reach(end, queue_));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
