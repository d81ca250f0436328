#include "inferd/forward/engine_options.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/model/hf_config.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/model_shapes.h"
#include "inferd/model/recurrent_states.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kDefaultContext = 8192;
constexpr uint32_t kMaxParallel = 4096;
constexpr uint32_t kMaxChunk = 1u << 16;
constexpr uint32_t kMaxCandidates = 1024;  // limit of Queue::TopLogits
// Kept states may use one part in this many of the budget left after the minimum. Pages are worth more: a
// state is useless without them.
constexpr uint64_t kKeptStatesShare = 4;
// Maximum prompt tokens of a step that waits for the disk. For a model with 128 experts per layer and 8 per
// token this is 128 rows per expert, for which a fast disk reads an expert in less time than its computation
// takes.
constexpr uint32_t kReadingChunk = 2048;

// Logit rows computed at once where a library may multiply: fewer than 64 are not worth it, and a head of
// 151,936 words is read for these rows once, into 156 MB of logits.
constexpr uint32_t kFastLogitRows = 256;

absl::Status CheckRange(const char* option, uint64_t value, uint64_t low, uint64_t high) {
  if (value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is ", value, ", it must be in ", low, "..", high));
  }
  return absl::OkStatus();
}

absl::Status CheckContext(const ModelConfig& config, const EngineOptions& o) {
  const absl::Status status = CheckRange("context", o.context, 1, config.max_position);
  const std::string lacks(LacksPart(config));
  return status.ok() || lacks.empty()
             ? status
             : absl::InvalidArgumentError(
                   absl::StrCat(status.message(), "; a pack of an earlier version lacks the ", lacks, " of ",
                                config.family, ": pack the model again for longer texts"));
}

absl::Status PlanKv(const ModelConfig& config, EnginePlan* plan) {
  const EngineOptions& o = plan->options;
  const uint64_t page_bytes = KvBytesPerPage(config, o.kv);
  const uint64_t one_context =
      KvPages::PeakPages(o.context, WidestWindow(config), std::min(o.max_prefill_chunk, o.context));
  plan->state_bytes = StateBytesPerSequence(config) * o.parallel;
  const uint64_t kept_bytes = o.prefix_cache ? StateBytes(config) : 0;
  // Two per running sequence: a chat leaves one at the end of its prompt and one at the end of its answer.
  plan->kept_states = kept_bytes > 0 ? 2 * o.parallel : 0;
  uint64_t pages = one_context * o.parallel;
  if (o.kv_budget > 0) {
    uint64_t for_pages = o.kv_budget - std::min(o.kv_budget, plan->state_bytes);
    if (plan->kept_states > 0) {
      const uint64_t spare = for_pages - std::min(for_pages, one_context * page_bytes);
      plan->kept_states =
          static_cast<uint32_t>(std::min<uint64_t>(plan->kept_states, spare / kKeptStatesShare / kept_bytes));
      for_pages -= plan->kept_states * kept_bytes;
    }
    pages = page_bytes > 0 ? std::min(pages, for_pages / page_bytes) : pages;
    if (pages < one_context || o.kv_budget < plan->state_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv_budget of ", o.kv_budget, " bytes cannot hold one context of ", o.context,
                       " tokens, which takes ", one_context * page_bytes, ", and ", plan->state_bytes,
                       " of recurrent state for ", o.parallel, " sequences"));
    }
  }
  if (pages >= kNoPage) {
    return absl::InvalidArgumentError(absl::StrCat(pages, " pages of KV cache, the limit is ", kNoPage - 1));
  }
  plan->kv_pages = static_cast<uint32_t>(pages);
  plan->kv_bytes = pages * page_bytes + plan->state_bytes + plan->kept_states * kept_bytes;
  return absl::OkStatus();
}

// Adds the longest rows and widest heads of any operation, including attention's space for cached rows.
void AddAttentionLimits(const AttentionConfig& a, BackendLimits* limits) {
  const auto raise = [](uint32_t* limit, uint32_t value) { *limit = std::max(*limit, value); };
  if (a.index.heads > 0) {
    raise(&limits->heads, a.index.heads);
    raise(&limits->head_dim, a.index.head_dim);
    raise(&limits->index_heads, a.index.heads);
    raise(&limits->chosen_lists,
          std::max(IndexLists(a.index), a.kind == AttentionKind::kLatent ? 1 : a.kv_heads));
  }
  switch (a.kind) {
    case AttentionKind::kCompressed:
      raise(&limits->heads, std::max(a.heads, a.compress.groups));
      raise(&limits->head_dim, a.head_dim);
      raise(&limits->max_cols, std::max({a.heads / a.compress.groups * a.head_dim, a.compress.q_rank,
                                         a.compress.groups * a.compress.o_rank}));
      break;
    case AttentionKind::kGrouped:
      raise(&limits->heads, a.heads);
      raise(&limits->head_dim, a.head_dim);
      raise(&limits->max_cols, a.heads * a.head_dim);
      break;
    case AttentionKind::kLatent:
      raise(&limits->heads, a.heads);
      raise(&limits->head_dim, std::max(a.head_dim, a.latent.kv_rank + a.rope.dimensions));
      raise(&limits->max_cols,
            std::max({a.heads * a.latent.value_dim, a.latent.q_rank, a.latent.kv_rank, a.latent.nope_dim}));
      break;
    case AttentionKind::kGatedDelta:
      raise(&limits->heads, a.delta.value_heads);
      raise(&limits->head_dim, std::max(a.delta.key_dim, a.delta.value_dim));
      raise(&limits->max_cols, std::max(a.delta.value_heads * a.delta.value_dim, a.delta.gate_rank));
      break;
    case AttentionKind::kMamba:
      raise(&limits->heads, a.mamba.heads);
      raise(&limits->head_dim, std::max(a.mamba.head_dim, a.mamba.state));
      raise(&limits->max_cols, a.mamba.heads * a.mamba.head_dim);
      break;
    case AttentionKind::kShortConv:
      raise(&limits->max_cols, a.conv.width);
      break;
    case AttentionKind::kSelective:
      raise(&limits->heads, 1);
      raise(&limits->head_dim, a.selective.state);
      raise(&limits->max_cols, std::max(a.selective.channels, a.selective.step_rank));
      break;
    case AttentionKind::kNone:
      break;
  }
}

BackendLimits LimitsOf(const ModelConfig& config, const EnginePlan& plan) {
  BackendLimits limits;
  // Inputs scaled by the router exist once per rank.
  limits.max_tokens = plan.forward.max_tokens * (AnyScalesInputs(config) ? MaxRanks(config) : 1);
  limits.max_sequences = plan.forward.max_sequences;
  limits.hidden = std::max(config.hidden, ExpertHidden(config));
  limits.max_cols = std::max(limits.hidden, config.streams.count * config.hidden);
  limits.max_context = plan.options.context;
  limits.vocab = config.vocab;
  limits.experts = MaxRouted(config);
  // Rows of residual streams are copied and added as an expert's are.
  limits.top_k = std::max(LargestTopK(config), config.streams.count);
  limits.expert_width = WidestExpert(config);
  limits.layers = static_cast<uint32_t>(config.layers.size());
  limits.shared_handle = plan.options.slab.handle;
  limits.prefill_math = plan.options.prefill_math;
  for (const LayerConfig& layer : config.layers) {
    AddAttentionLimits(layer.attention, &limits);
    limits.max_cols = std::max(limits.max_cols, NgramWidth(layer.ngrams));
  }
  return limits;
}

}  // namespace

uint32_t GrowingChunk(const EngineOptions& options, bool whole) {
  const bool grows = !whole && options.device == DeviceKind::kHost;
  return grows ? std::max(options.prefill_chunk, kReadingChunk) : options.prefill_chunk;
}

ModelConfig ServedConfig(const EngineOptions& options, const ModelConfig& config) {
  const bool mtp = options.speculate == SpeculateMode::kAuto || options.speculate == SpeculateMode::kMtp;
  return mtp ? config : WithoutMtpLayers(config);
}

absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const ModelConfig& pack_config) {
  const ModelConfig config = ServedConfig(options, pack_config);
  RETURN_IF_ERROR(CheckSupported(config));
  ASSIGN_OR_RETURN(const Policies policies, PoliciesOf(options.preset, options.policies, options.device));
  EnginePlan plan;
  plan.options = options;
  EngineOptions& o = plan.options;
  if (o.context == 0) {
    o.context = std::min(config.max_position, kDefaultContext);
  }
  RETURN_IF_ERROR(CheckContext(config, o));
  RETURN_IF_ERROR(CheckRange("parallel", o.parallel, 1, kMaxParallel));
  RETURN_IF_ERROR(CheckRange("prefill_chunk", o.prefill_chunk, 1, kMaxChunk));
  RETURN_IF_ERROR(CheckRange("max_prefill_chunk", o.max_prefill_chunk, 0, kMaxChunk));
  o.max_prefill_chunk = std::max(o.prefill_chunk, std::min(o.max_prefill_chunk, o.context));
  RETURN_IF_ERROR(CheckRange("max_logprobs", o.max_logprobs, 0, kMaxCandidates - 1));
  RETURN_IF_ERROR(PlanKv(config, &plan));
  plan.forward.context = o.context;
  plan.forward.max_sequences = o.parallel;
  plan.forward.max_tokens = o.parallel + o.max_prefill_chunk;
  plan.forward.logit_rows = LogitRowsFor(config.vocab, plan.forward.max_tokens);
  if (o.device == DeviceKind::kCuda && o.prefill_math != PrefillMath::kExact) {
    plan.forward.logit_rows =
        std::max(plan.forward.logit_rows, std::min(kFastLogitRows, plan.forward.max_tokens));
  }
  plan.forward.max_candidates = std::min(config.vocab, 1 + o.max_logprobs);
  // The choice of `auto` is not known yet.
  plan.forward.look_ahead = options.prefetch && (policies.predictor == ExpertPredictorKind::kLookahead ||
                                                 policies.preset == "auto");
  plan.forward.draft_tokens = options.prefetch && policies.token_draft && CanDraftTokens(config);
  plan.activation_bytes = ActivationBytes(config, plan.forward);
  if (o.device != DeviceKind::kHost) plan.activation_bytes += DeferredBytes(config, plan.forward);
  plan.backend = LimitsOf(config, plan);
  return plan;
}

uint64_t KvBytesOf(const EnginePlan& plan, const ModelConfig& config, uint32_t pages) {
  return pages * KvBytesPerPage(config, plan.options.kv) + plan.state_bytes +
         plan.kept_states * StateBytes(config);
}

absl::StatusOr<uint32_t> PagesWithin(const EnginePlan& plan, const ModelConfig& config, uint64_t kv_budget,
                                     uint32_t context) {
  const EngineOptions& o = plan.options;
  const uint64_t page_bytes = KvBytesPerPage(config, o.kv);
  const auto peak = [&](uint32_t positions) {
    return KvPages::PeakPages(positions, WidestWindow(config), std::min(o.max_prefill_chunk, positions));
  };
  const uint64_t most = uint64_t{peak(o.context)} * o.parallel;
  if (page_bytes == 0) return static_cast<uint32_t>(most);
  const uint64_t states = plan.state_bytes + plan.kept_states * StateBytes(config);
  const uint64_t pages = std::min((kv_budget - std::min(kv_budget, states)) / page_bytes, most);
  if (pages < peak(context)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a KV budget of ", kv_budget, " bytes has ", pages, " pages of ", page_bytes, " bytes beside ",
        states, " of recurrent states; one text of ", context, " tokens takes ", peak(context), " pages"));
  }
  return static_cast<uint32_t>(pages);
}

}  // namespace sluice::inferd
