#include "inferd/policy/expert_predictor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/routing.h"

namespace sluice::inferd {

absl::StatusOr<Routing> ExpertPredictor::Predict(const RouterState& state, uint32_t target) {
  RETURN_IF_ERROR(Ask(state, target));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  return Answer(state, target);
}

absl::StatusOr<std::unique_ptr<GateReuse>> GateReuse::Create(const ModelConfig& config,
                                                             const DenseWeights* weights, Backend* backend,
                                                             uint32_t max_tokens, bool confidence,
                                                             uint32_t targets) {
  std::unique_ptr<GateReuse> predictor(new GateReuse(config, weights, backend));
  for (uint32_t i = 0; i < targets; ++i) {
    RETURN_IF_ERROR(predictor->AddQuestion(max_tokens, confidence));
  }
  if (confidence) {
    predictor->rows_.resize(max_tokens);
    std::iota(predictor->rows_.begin(), predictor->rows_.end(), 0);
    predictor->confidence_.resize(uint64_t{max_tokens} * LargestTopK(config));
  }
  return predictor;
}

absl::Status GateReuse::AddQuestion(uint32_t max_tokens, bool confidence) {
  const uint64_t pairs = uint64_t{max_tokens} * LargestTopK(config_);
  const uint64_t stride = MaxRouted(config_);
  ASSIGN_OR_RETURN(const BufferId scores,
                   backend_->Allocate(max_tokens * stride * sizeof(float), BufferKind::kActivations));
  ASSIGN_OR_RETURN(const BufferId choice,
                   backend_->Allocate(2 * pairs * sizeof(float), BufferKind::kStaging));
  Question& question = questions_.emplace_back();
  question.scores = {{scores, 0}, stride};
  question.ids = {choice, 0};
  question.chances = {choice, pairs * sizeof(float)};
  if (confidence) question.told.emplace(max_tokens, MaxRouted(config_));
  return absl::OkStatus();
}

GateReuse::Question* GateReuse::Find(uint32_t target) {
  const auto found = std::find_if(questions_.begin(), questions_.end(),
                                  [target](const Question& q) { return q.target == target; });
  return found == questions_.end() ? nullptr : &*found;
}

absl::Status GateReuse::Ask(const RouterState& state, uint32_t target) {
  Question* question = Find(target);
  if (question == nullptr) {
    // Reuses the oldest question, so that those just asked keep their answers.
    question = &*std::min_element(questions_.begin(), questions_.end(),
                                  [](const Question& a, const Question& b) { return a.asked < b.asked; });
  }
  question->asked = ++asked_;
  question->target = target;
  Queue& queue = backend_->queue();
  const LayerWeights& w = weights_->layer(target);
  const MoeConfig& moe = config_.layers[target].moe;
  const MatMulPart router[] = {{w.router, question->scores, w.router_bias}};
  MatMulArgs args;
  args.x = state.residual;
  args.tokens = state.routing.tokens;
  args.cols = config_.hidden;
  args.norm = w.RouterNorm();
  args.parts = router;
  RETURN_IF_ERROR(queue.MatMul(args));
  RouterArgs router_args = ModelRouterArgs(moe, w);
  router_args.logits = question->scores;
  router_args.tokens = state.routing.tokens;
  router_args.ids = question->ids;
  router_args.weights = question->chances;
  RETURN_IF_ERROR(queue.Router(router_args));
  if (!question->told.has_value()) return absl::OkStatus();
  const auto rows = absl::MakeConstSpan(rows_).first(state.routing.tokens);
  return question->told->Ask(question->scores, moe.experts + moe.zero_experts, rows, &queue);
}

absl::StatusOr<Routing> GateReuse::Answer(const RouterState& state, uint32_t target) {
  Question* question = Find(target);
  if (question == nullptr) return absl::InternalError(absl::StrCat("nobody asked about layer ", target));
  const MoeConfig& moe = config_.layers[target].moe;
  const uint32_t tokens = state.routing.tokens;
  const uint64_t bytes = uint64_t{tokens} * moe.top_k * sizeof(float);
  const std::byte* ids = backend_->HostRead(question->ids, bytes);
  const std::byte* chances = backend_->HostRead(question->chances, bytes);
  if (ids == nullptr || chances == nullptr) {
    return absl::InternalError("the predictor's staging memory cannot be read");
  }
  const Routing routing{tokens, moe.top_k, moe.top_k, reinterpret_cast<const int32_t*>(ids),
                        reinterpret_cast<const float*>(chances)};
  if (question->told.has_value()) JudgeRows(routing, moe.experts + moe.zero_experts, question);
  return routing;
}

void GateReuse::JudgeRows(const Routing& routing, uint32_t experts, Question* question) {
  question->told->Take();
  top_k_ = routing.top_k;
  for (uint32_t row = 0; row < routing.tokens; ++row) {
    const int32_t* ids = routing.ids + uint64_t{row} * routing.ranks;
    const float* p = question->told->row(row);
    float other = 0;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      const bool named = std::find(ids, ids + top_k_, static_cast<int32_t>(expert)) != ids + top_k_;
      other = named ? other : std::max(other, p[expert]);
    }
    for (uint32_t rank = 0; rank < top_k_; ++rank) {
      const float own = p[ids[rank]];
      confidence_[uint64_t{row} * top_k_ + rank] = own + other > 0 ? own / (own + other) : 1;
    }
  }
}

absl::StatusOr<std::unique_ptr<FirstLayerPredictor>> FirstLayerPredictor::Create(
    const ModelConfig& config, const PredictorProfile& profile, const NormSpec* final_norm, Backend* backend,
    uint32_t max_tokens, uint32_t max_sequences) {
  if (!profile.first_layer.has_value()) {
    return absl::FailedPreconditionError(
        "--policy first_layer=on: the profile holds no gate for the first layer; make it anew with `sluice "
        "calibrate`");
  }
  std::unique_ptr<FirstLayerPredictor> made(
      new FirstLayerPredictor(config, *profile.first_layer, final_norm, backend));
  while (config.layers[made->layer_].moe.experts == 0) ++made->layer_;
  if (made->gate_.final_norm) {
    const uint64_t bytes = uint64_t{max_tokens} * config.hidden * sizeof(float);
    ASSIGN_OR_RETURN(const BufferId rows, backend->Allocate(bytes, BufferKind::kActivations));
    made->normed_ = {{rows, 0}, config.hidden};
  }
  const MoeConfig& moe = config.layers[made->layer_].moe;
  made->inputs_.resize(uint64_t{max_sequences} * config.hidden);
  made->scores_.resize(moe.experts);
  made->order_.resize(moe.experts);
  made->ids_.resize(uint64_t{max_sequences} * moe.top_k);
  made->chances_.resize(made->ids_.size());
  return made;
}

absl::Status FirstLayerPredictor::Ask(const LayerEnd& end, absl::Span<const uint32_t> rows) {
  Queue& queue = backend_->queue();
  const uint32_t tokens = end.batch->tokens();
  if (gate_.final_norm) {
    RETURN_IF_ERROR(queue.Norm({end.residual, tokens, config_.hidden, *final_norm_, normed_}));
  }
  const Rows from = gate_.final_norm ? normed_ : end.residual;
  asked_ = static_cast<uint32_t>(rows.size());
  for (uint32_t i = 0; i < asked_; ++i) {
    RETURN_IF_ERROR(queue.Download(from.base + uint64_t{rows[i]} * from.stride * sizeof(float),
                                   uint64_t{config_.hidden} * sizeof(float),
                                   inputs_.data() + uint64_t{i} * config_.hidden));
  }
  return absl::OkStatus();
}

Routing FirstLayerPredictor::Answer() {
  const uint32_t experts = static_cast<uint32_t>(scores_.size());
  const uint32_t top_k = config_.layers[layer_].moe.top_k;
  for (uint32_t i = 0; i < asked_; ++i) {
    gate_.net.Run(inputs_.data() + uint64_t{i} * config_.hidden, nullptr, scores_.data());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + top_k, order_.end(), [&](int32_t a, int32_t b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    double sum = 0;
    for (uint32_t e = 0; e < experts; ++e) sum += std::exp(double{scores_[e]} - scores_[order_[0]]);
    for (uint32_t rank = 0; rank < top_k; ++rank) {
      ids_[uint64_t{i} * top_k + rank] = order_[rank];
      chances_[uint64_t{i} * top_k + rank] =
          static_cast<float>(std::exp(double{scores_[order_[rank]]} - scores_[order_[0]]) / sum);
    }
  }
  return Routing{asked_, top_k, top_k, ids_.data(), chances_.data()};
}

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
      const bool routed = expert < config_.layers[state.layer].moe.experts;
      if (routed && begin + expert < input_.size()) input_[begin + expert] = 1;
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
