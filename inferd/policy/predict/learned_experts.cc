#include "inferd/policy/predict/learned_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {

LearnedExperts::LearnedExperts(const ModelConfig& config, PredictorProfile profile, Backend* backend)
    : ExpertPredictor(&backend->queue()), config_(config), profile_(std::move(profile)) {
  uint32_t units = 0;
  uint32_t inputs = 0;
  for (const LearnedPredictor& learned : profile_.learned) {
    units = std::max(units, learned.net.units);
    inputs = std::max(inputs, learned.net.inputs);
  }
  const uint32_t experts = MaxExperts(config);
  const uint64_t pairs = uint64_t{kMaxRows} * LargestTopK(config);
  own_.ids.resize(pairs);
  before_.ids.resize(pairs);
  rows_.resize(uint64_t{kMaxRows} * config.hidden);
  input_.resize(inputs);
  scratch_.resize(units);
  scores_.resize(experts);
  order_.resize(experts);
  ids_.resize(pairs);
  chances_.resize(pairs);
}

absl::StatusOr<std::unique_ptr<LearnedExperts>> LearnedExperts::Create(const ModelConfig& config,
                                                                       PredictorProfile profile,
                                                                       Backend* backend) {
  if (profile.learned.empty()) {
    return absl::FailedPreconditionError(
        "--policy expert_predictor=learned: the profile holds no learned predictor; make it anew with "
        "`sluice "
        "calibrate`");
  }
  return std::unique_ptr<LearnedExperts>(new LearnedExperts(config, std::move(profile), backend));
}

absl::Status LearnedExperts::Observe(const RouterState& state) {
  std::swap(own_, before_);
  own_.step = state.batch->step();
  own_.layer = state.layer;
  own_.top_k = state.routing.top_k;
  own_.tokens = state.routing.tokens <= kMaxRows ? state.routing.tokens : 0;
  for (uint32_t token = 0; token < own_.tokens; ++token) {
    std::copy_n(state.routing.ids + uint64_t{token} * state.routing.ranks, own_.top_k,
                own_.ids.begin() + uint64_t{token} * own_.top_k);
  }
  return absl::OkStatus();
}

// Network input: x_l, then the multi-hot experts of this layer and of the routed one before.
void LearnedExperts::MakeInput(const RouterState& state, uint32_t token) {
  const uint32_t hidden = config_.hidden;
  std::copy_n(rows_.begin() + uint64_t{token} * hidden, hidden, input_.begin());
  std::fill(input_.begin() + hidden, input_.end(), 0.0f);
  uint32_t begin = hidden;
  const int layer_before = RoutedLayerBefore(config_, state.layer);
  for (const Choice* choice : {&own_, &before_}) {
    const bool known = choice->step == state.batch->step() && token < choice->tokens &&
                       (choice == &own_ || static_cast<int>(choice->layer) == layer_before);
    for (uint32_t rank = 0; known && rank < choice->top_k; ++rank) {
      const uint32_t expert = static_cast<uint32_t>(choice->ids[uint64_t{token} * choice->top_k + rank]);
      if (begin + expert < input_.size()) input_[begin + expert] = 1;
    }
    begin += config_.layers[state.layer].moe.experts;
  }
}

bool LearnedExperts::Knows(const RouterState& state, uint32_t target) const {
  return profile_.Learned(state.layer) != nullptr && target == state.layer + 1 &&
         state.routing.tokens <= kMaxRows;
}

absl::Status LearnedExperts::Ask(const RouterState& state, uint32_t target) {
  const uint64_t bytes = uint64_t{config_.hidden} * sizeof(float);
  for (uint32_t token = 0; token < state.routing.tokens && Knows(state, target); ++token) {
    RETURN_IF_ERROR(queue()->Download(state.normed.base + token * state.normed.stride * sizeof(float), bytes,
                                      rows_.data() + uint64_t{token} * config_.hidden));
  }
  return absl::OkStatus();
}

absl::StatusOr<Routing> LearnedExperts::Answer(const RouterState& state, uint32_t target) {
  if (!Knows(state, target)) return Routing{};
  const PredictorNet* net = profile_.Learned(state.layer);
  const uint32_t tokens = state.routing.tokens;
  const uint32_t top_k = top_k_ = config_.layers[target].moe.top_k;
  for (uint32_t token = 0; token < tokens; ++token) {
    MakeInput(state, token);
    net->Run(input_.data(), scratch_.data(), scores_.data());
    std::iota(order_.begin(), order_.begin() + net->outputs, 0);
    std::partial_sort(
        order_.begin(), order_.begin() + top_k, order_.begin() + net->outputs,
        [&](int32_t a, int32_t b) { return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b; });
    for (uint32_t rank = 0; rank < top_k; ++rank) {
      const uint64_t at = uint64_t{token} * top_k + rank;
      ids_[at] = order_[rank];
      chances_[at] = 1 / (1 + std::exp(-scores_[order_[rank]]));
    }
  }
  return Routing{tokens, top_k, top_k, ids_.data(), chances_.data()};
}

}  // namespace sluice::inferd
