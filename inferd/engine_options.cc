#include "inferd/engine_options.h"

#include <algorithm>

#include "common/status.h"
#include "inferd/kv_cache.h"
#include "inferd/policy/preset.h"

namespace sluice {
namespace {

constexpr uint32_t kDefaultContext = 8192;
constexpr uint32_t kMaxParallel = 4096;
constexpr uint32_t kMaxChunk = 1u << 16;
constexpr uint32_t kMaxCandidates = 1024;  // of Queue::TopLogits

absl::Status CheckRange(const char* option, uint64_t value, uint64_t low, uint64_t high) {
  if (value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is ", value, ", it must be in ", low, "..", high));
  }
  return absl::OkStatus();
}

absl::Status PlanKv(const ModelConfig& config, EnginePlan* plan) {
  const EngineOptions& o = plan->options;
  const uint64_t page_bytes = KvBytesPerPage(config, o.kv);
  const uint64_t one_context =
      KvPages::PeakPages(o.context, WidestWindow(config), std::min(o.prefill_chunk, o.context));
  uint64_t pages = one_context * o.parallel;
  if (o.kv_budget > 0) {
    pages = std::min(pages, o.kv_budget / page_bytes);
  }
  if (pages < one_context) {
    return absl::InvalidArgumentError(absl::StrCat("kv_budget of ", o.kv_budget,
                                                   " bytes cannot hold one context of ", o.context,
                                                   " tokens, which takes ", one_context * page_bytes));
  }
  if (pages >= kNoPage) {
    return absl::InvalidArgumentError(absl::StrCat(pages, " pages of KV cache, the limit is ", kNoPage - 1));
  }
  plan->kv_pages = static_cast<uint32_t>(pages);
  plan->kv_bytes = pages * page_bytes;
  return absl::OkStatus();
}

BackendLimits LimitsOf(const ModelConfig& config, const EnginePlan& plan) {
  BackendLimits limits;
  limits.max_tokens = plan.forward.max_tokens;
  limits.max_sequences = plan.forward.max_sequences;
  limits.hidden = config.hidden;
  limits.max_cols = config.hidden;
  limits.max_context = plan.options.context;
  limits.vocab = config.vocab;
  limits.experts = MostExperts(config);
  limits.top_k = LargestTopK(config);
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& a = layer.attention;
    limits.heads = std::max(limits.heads, a.heads);
    limits.head_dim = std::max(limits.head_dim, a.head_dim);
    limits.max_cols = std::max(limits.max_cols, a.heads * a.head_dim);
    limits.expert_width = std::max(limits.expert_width, layer.moe.expert_width);
  }
  return limits;
}

}  // namespace

absl::StatusOr<EnginePlan> PlanEngine(const EngineOptions& options, const ModelConfig& config) {
  RETURN_IF_ERROR(CheckSupported(config));
  RETURN_IF_ERROR(PoliciesOf(options.preset, options.policies).status());
  EnginePlan plan;
  plan.options = options;
  EngineOptions& o = plan.options;
  if (o.context == 0) {
    o.context = std::min(config.max_position, kDefaultContext);
  }
  RETURN_IF_ERROR(CheckRange("context", o.context, 1, config.max_position));
  RETURN_IF_ERROR(CheckRange("parallel", o.parallel, 1, kMaxParallel));
  RETURN_IF_ERROR(CheckRange("prefill_chunk", o.prefill_chunk, 1, kMaxChunk));
  RETURN_IF_ERROR(CheckRange("max_logprobs", o.max_logprobs, 0, kMaxCandidates - 1));
  RETURN_IF_ERROR(PlanKv(config, &plan));
  plan.forward.context = o.context;
  plan.forward.max_sequences = o.parallel;
  plan.forward.max_tokens = o.parallel + o.prefill_chunk;
  plan.forward.logit_rows = LogitRowsFor(config.vocab, plan.forward.max_tokens);
  plan.forward.max_candidates = std::min(config.vocab, 1 + o.max_logprobs);
  plan.activation_bytes = ActivationBytes(config, plan.forward);
  plan.backend = LimitsOf(config, plan);
  return plan;
}

}  // namespace sluice
