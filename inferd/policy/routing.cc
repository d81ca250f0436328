#include "inferd/policy/routing.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/profile/profile.h"
#include "inferd/model/model_shapes.h"
#include "kernels/scalar_math.h"

namespace sluice::inferd {
namespace {

void Softmax(float* values, uint32_t count) {
  const float most = *std::max_element(values, values + count);
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    values[i] = std::exp(values[i] - most);
    sum += double{values[i]};
  }
  for (uint32_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(double{values[i]} / sum);
  }
}

}  // namespace

RouterScores::RouterScores(uint32_t most_tokens, uint32_t most_experts)
    : scores_(uint64_t{most_tokens} * most_experts), mean_(most_experts) {}

absl::Status RouterScores::Read(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows,
                                Queue* queue) {
  RETURN_IF_ERROR(Ask(logits, experts, rows, queue));
  RETURN_IF_ERROR(queue->Wait(queue->Record()));
  Take();
  return absl::OkStatus();
}

absl::Status RouterScores::Ask(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue) {
  rows_ = static_cast<uint32_t>(rows.size());
  experts_ = experts;
  float* to = scores_.data();
  for (const uint32_t row : rows) {
    const BufferRef from = logits.base + uint64_t{row} * logits.stride * sizeof(float);
    RETURN_IF_ERROR(queue->Download(from, uint64_t{experts_} * sizeof(float), to));
    to += experts_;
  }
  return absl::OkStatus();
}

void RouterScores::Take() {
  for (uint32_t i = 0; i < rows_; ++i) {
    Softmax(scores_.data() + uint64_t{i} * experts_, experts_);
  }
}

absl::Span<const float> RouterScores::Mean() {
  for (uint32_t expert = 0; expert < experts_; ++expert) {
    double sum = 0;
    for (uint32_t i = 0; i < rows_; ++i) sum += double{row(i)[expert]};
    mean_[expert] = rows_ == 0 ? 0.0f : static_cast<float>(sum / rows_);
  }
  return absl::MakeConstSpan(mean_.data(), experts_);
}

bool WeighsBySoftmax(RouterKind kind) {
  return kind == RouterKind::kSoftmaxTopK || kind == RouterKind::kTopKSoftmax;
}

void WeighBySoftmax(const RouterArgs& args, const float* scores, const int32_t* ids, float* weights) {
  double chosen = 0;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) chosen += double{scores[ids[rank]]};
  const bool normalised = args.norm_topk_prob || args.kind == RouterKind::kTopKSoftmax;
  const double factor = (normalised && chosen > 0 ? 1 / chosen : 1) * args.routed_scale;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) {
    weights[rank] = static_cast<float>(double{scores[ids[rank]]} * factor);
  }
}

ExpertExchange::ExpertExchange(uint32_t most_tokens, uint32_t most_experts)
    : sorted_(most_experts), beta_(most_tokens), users_(most_experts), there_(most_experts) {
  leaving_.reserve(most_experts);
  joining_.reserve(most_experts);
}

double ExpertExchange::Beta(const float* scores, const ExchangeBatch& batch) {
  std::copy(scores, scores + batch.experts, sorted_.begin());
  std::nth_element(sorted_.begin(), sorted_.begin() + batch.top_k, sorted_.begin() + batch.experts,
                   std::greater<float>());
  return sorted_[batch.top_k];
}

uint32_t ExpertExchange::Choose(const ExchangeBatch& batch, double alpha,
                                absl::FunctionRef<bool(uint32_t)> resident) {
  low_scores_ = 0;
  if (batch.experts <= batch.top_k) return 0;
  for (uint32_t expert = 0; expert < batch.experts; ++expert) {
    there_[expert] = resident(expert);
    users_[expert] = 0;
  }
  for (uint32_t token = 0; token < batch.tokens; ++token) {
    const float* scores = batch.scores + uint64_t{token} * batch.experts;
    beta_[token] = Beta(scores, batch);
    for (uint32_t rank = 0; rank < batch.top_k; ++rank) {
      const uint32_t expert = static_cast<uint32_t>(batch.ids[uint64_t{token} * batch.top_k + rank]);
      users_[expert]++;
      const bool low = scores[expert] <= (1 + alpha) * beta_[token];
      low_scores_ += low;
      if (!low) there_[expert] = true;
    }
  }
  uint32_t exchanged = 0;
  for (uint32_t token = 0; token < batch.tokens; ++token) {
    exchanged += ChooseToken(batch, token, alpha);
  }
  return exchanged;
}

uint32_t ExpertExchange::ChooseToken(const ExchangeBatch& batch, uint32_t token, double alpha) {
  const float* scores = batch.scores + uint64_t{token} * batch.experts;
  const absl::Span<int32_t> ids(batch.ids + uint64_t{token} * batch.top_k, batch.top_k);
  leaving_.clear();
  for (uint32_t rank = batch.top_k; rank-- > 0;) {
    const uint32_t expert = static_cast<uint32_t>(ids[rank]);
    if (!there_[expert] && scores[expert] <= (1 + alpha) * beta_[token]) leaving_.push_back(rank);
  }
  if (leaving_.empty()) return 0;
  joining_.clear();
  for (uint32_t expert = 0; expert < batch.experts; ++expert) {
    const double p = scores[expert];
    if (there_[expert] && p <= beta_[token] && p >= (1 - alpha) * beta_[token] &&
        std::find(ids.begin(), ids.end(), static_cast<int32_t>(expert)) == ids.end()) {
      joining_.push_back(expert);
    }
  }
  const auto better = [&](uint32_t a, uint32_t b) {
    if (scores[a] != scores[b]) return scores[a] > scores[b];
    return users_[a] != users_[b] ? users_[a] > users_[b] : a < b;
  };
  std::sort(joining_.begin(), joining_.end(), better);
  const size_t exchanged = std::min(leaving_.size(), joining_.size());
  for (size_t i = 0; i < exchanged; ++i) ids[leaving_[i]] = static_cast<int32_t>(joining_[i]);
  std::sort(ids.begin(), ids.end(),
            [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  return static_cast<uint32_t>(exchanged);
}

RouterArgs ModelRouterArgs(const MoeConfig& moe, const LayerWeights& weights) {
  RouterArgs args;
  args.experts = moe.experts + moe.zero_experts;
  args.kind = moe.router;
  args.top_k = moe.top_k;
  args.norm_topk_prob = moe.norm_topk_prob;
  args.norm_epsilon = moe.norm_epsilon;
  args.routed_scale = moe.routed_scale;
  args.expert_scale = weights.expert_scale;
  args.correction = weights.router_correction;
  args.jitter = moe.router_jitter;
  args.groups = moe.groups;
  args.top_groups = moe.top_groups;
  args.group_score = moe.group_score;
  return args;
}

RoutingCounters RoutingPolicy::counters() const {
  RoutingCounters sum;
  for (const RoutingCounters& layer : layer_counters()) sum.Add(layer);
  return sum;
}

absl::Status TopKRouting::Choose(const RoutingInput& input, Queue* queue) {
  return queue->Router(input.model);
}

absl::Status SensitivityRouting::Choose(const RoutingInput& input, Queue* queue) {
  RouterArgs args = input.model;
  args.cut = CutsOnDevice(input);
  args.cut_sensitivity = sensitivities_[input.layer];
  args.cut_limit = threshold_;
  return queue->Router(args);
}

bool SensitivityRouting::CutsOnDevice(const RoutingInput& input) {
  return input.model.top_k > 1 && input.batch->decode_rows() == input.model.tokens;
}

absl::Status SensitivityRouting::Decide(const RoutingInput& input, Queue*) {
  const RouterArgs& args = input.model;
  if (args.top_k < 2 || input.batch->decode_rows() == 0) return absl::OkStatus();
  const uint32_t ranks = args.top_k + (args.shared ? 1 : 0);
  float* weights = reinterpret_cast<float*>(
      backend_->HostWrite(args.weights, uint64_t{args.tokens} * ranks * sizeof(float)));
  if (weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  const bool cut = CutsOnDevice(input);
  for (uint32_t row = 0; row < args.tokens; ++row) {
    if (!input.batch->decodes(row)) continue;
    const absl::Span<float> of_row(weights + uint64_t{row} * ranks, args.top_k);
    if (!cut) {
      KeepExperts(of_row, ExpertsKept(of_row, sensitivities_[input.layer], threshold_));
    }
    Count(input.layer, of_row);
  }
  return absl::OkStatus();
}

// Ranks that were left out are the last ones and have a weight of 0.
void SensitivityRouting::Count(uint32_t layer, absl::Span<const float> weights) {
  const uint32_t top_k = static_cast<uint32_t>(weights.size());
  uint32_t kept = top_k;
  while (kept > 1 && weights[kept - 1] == 0.0f) --kept;
  RoutingCounters& counters = counters_[layer];
  counters.rows++;
  counters.pairs += top_k;
  counters.dropped += top_k - kept;
  counters.single += kept == 1;
}

void SensitivityRouting::CountResident(uint32_t layer, const Routing& routing, const StepBatch& batch) {
  for (uint32_t row = 0; row < routing.tokens && routing.top_k > 1; ++row) {
    if (batch.decodes(row)) {
      Count(layer, absl::MakeConstSpan(routing.weights + uint64_t{row} * routing.ranks, routing.top_k));
    }
  }
}

CacheAwareRouting::CacheAwareRouting(double alpha, uint32_t layers, uint32_t max_tokens,
                                     uint32_t most_experts, uint32_t largest_top_k, Backend* backend)
    : alpha_(alpha),
      backend_(backend),
      scores_(max_tokens, most_experts),
      exchange_(max_tokens, most_experts),
      ids_(uint64_t{max_tokens} * largest_top_k),
      counters_(layers) {
  rows_.reserve(max_tokens);
}

absl::Status CacheAwareRouting::Choose(const RoutingInput& input, Queue* queue) {
  const RouterArgs& args = input.model;
  RETURN_IF_ERROR(queue->Router(args));
  rows_.clear();
  for (uint32_t row = 0; row < args.tokens; ++row) {
    if (input.batch->decodes(row) && !input.batch->lost(row)) rows_.push_back(row);
  }
  return rows_.empty() ? absl::OkStatus() : scores_.Ask(args.logits, args.experts, rows_, queue);
}

absl::Status CacheAwareRouting::Decide(const RoutingInput& input, Queue*) {
  if (rows_.empty()) return absl::OkStatus();
  scores_.Take();
  const RouterArgs& args = input.model;
  const uint32_t k = args.top_k;
  const uint32_t ranks = k + (args.shared ? 1 : 0);
  const uint64_t bytes = uint64_t{args.tokens} * ranks * sizeof(float);
  int32_t* ids = reinterpret_cast<int32_t*>(backend_->HostWrite(args.ids, bytes));
  float* weights = reinterpret_cast<float*>(backend_->HostWrite(args.weights, bytes));
  if (ids == nullptr || weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    std::copy_n(ids + uint64_t{rows_[i]} * ranks, k, ids_.begin() + uint64_t{i} * k);
  }
  RoutingCounters& counters = counters_[input.layer];
  counters.rows += rows_.size();
  counters.pairs += rows_.size() * k;
  const uint32_t exchanged = exchange_.Choose(
      {static_cast<uint32_t>(rows_.size()), args.experts, k, scores_.data(), ids_.data()}, alpha_,
      [&](uint32_t expert) { return input.residency->IsResident(input.layer, expert); });
  counters.exchanged += exchanged;
  for (uint32_t i = 0; i < rows_.size() && exchanged > 0; ++i) {
    int32_t* of_row = ids + uint64_t{rows_[i]} * ranks;
    const int32_t* chosen = ids_.data() + uint64_t{i} * k;
    if (std::equal(chosen, chosen + k, of_row)) continue;  // the model's own weights, to the bit
    std::copy_n(chosen, k, of_row);
    WeighBySoftmax(args, scores_.row(i), chosen, weights + uint64_t{rows_[i]} * ranks);
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckSoftmax(const ModelConfig& config) {
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    if (moe.zero_experts > 0) {
      return absl::UnimplementedError(absl::StrCat("--policy routing=cache_aware: layer ", layer, " has ",
                                                   moe.zero_experts, " experts that return their input"));
    }
    if (moe.experts > 0 && !WeighsBySoftmax(moe.router)) {
      return absl::UnimplementedError(
          absl::StrCat("--policy routing=cache_aware: the router of layer ", layer,
                       " does not weigh by a softmax, which the policy's scores are"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RoutingPolicy>> MakeRouting(const RoutingSetup& setup) {
  const Policies& policies = *setup.policies;
  switch (policies.routing) {
    case RoutingKind::kTopK:
      return std::make_unique<TopKRouting>();
    case RoutingKind::kSensitivity: {
      ASSIGN_OR_RETURN(GatingRule rule, ResolveGating(policies.sensitivity, *setup.config, setup.profile_dir,
                                                      setup.source_digest));
      return std::make_unique<SensitivityRouting>(std::move(rule.sensitivities), rule.threshold,
                                                  setup.backend);
    }
    case RoutingKind::kCacheAware:
      RETURN_IF_ERROR(CheckSoftmax(*setup.config));
      return std::make_unique<CacheAwareRouting>(
          policies.cache_alpha, static_cast<uint32_t>(setup.config->layers.size()), setup.max_tokens,
          MaxExperts(*setup.config), LargestTopK(*setup.config), setup.backend);
  }
  return absl::InternalError("no such routing policy");
}

absl::StatusOr<GatingRule> ResolveGating(const SensitivityConfig& config, const ModelConfig& model,
                                         const std::string& profile_dir, const std::string& source_digest) {
  constexpr double kDefaultIncrease = 0.01;  // increase of perplexity, if no other value is set
  GatingRule rule;
  if (config.score.has_value()) {
    rule.sensitivities.assign(model.layers.size(), 1.0);
    rule.threshold = *config.score;
    return rule;
  }
  ASSIGN_OR_RETURN(const SensitivityProfile profile, ReadSensitivity(profile_dir, model, source_digest));
  for (const LayerSensitivity& layer : profile.layers) rule.sensitivities.push_back(layer.measured);
  ASSIGN_OR_RETURN(const GatingProfile gating, ReadGating(profile_dir, source_digest));
  rule.threshold = gating.table.Threshold(config.share.value_or(gating.table.ShareWithin(kDefaultIncrease)));
  return rule;
}

}  // namespace sluice::inferd
