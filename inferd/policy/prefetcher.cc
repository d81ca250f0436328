#include "inferd/policy/prefetcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "inferd/policy/expert_predictor.h"
#include "kernels/scalar_math.h"

namespace sluice::inferd {

Prefetcher::Prefetcher(const ModelConfig& config, PrefetcherOptions options, Predictors predictors,
                       ExpertPrefetch* residency)
    : config_(config),
      options_(std::move(options)),
      predictor_(std::move(predictors.experts)),
      first_layer_(std::move(predictors.first_layer)),
      neurons_(std::move(predictors.neurons)),
      draft_predictor_(std::move(predictors.draft)),
      residency_(residency),
      predictions_(config.layers.size() * (kMaxPrefetchDepth + 1)),
      ranking_(MaxExperts(config)),
      next_routed_(config.layers.size(), kNoLayer),
      counts_(config.layers.size() * (kMaxPrefetchDepth + 1)),
      recall_(options_.recall, config.layers.size(), neurons_ != nullptr),
      draft_recall_(kMinDraftRecall, 1, false) {
  uint32_t next = kNoLayer;
  for (uint32_t layer = static_cast<uint32_t>(config.layers.size()); layer > 0; --layer) {
    next_routed_[layer - 1] = next;
    next = config.layers[layer - 1].moe.experts > 0 ? layer - 1 : next;
  }
  first_routed_ = next;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const uint64_t top_k = config.layers[layer].moe.top_k;
    for (uint32_t depth = 1; depth <= options_.depth; ++depth) {
      at(layer, depth).ids.resize(options_.max_tokens * top_k);
    }
  }
  if (first_layer_ != nullptr) {
    at(first_layer_->layer(), 0)
        .ids.resize(uint64_t{options_.max_sequences} * config.layers[first_layer_->layer()].moe.top_k);
  } else if (draft_predictor_ != nullptr) {
    at(0, 0).ids.resize(uint64_t{options_.max_sequences} * config.layers[0].moe.top_k);
  }
  drafted_sequences_.reserve(options_.max_sequences);
  last_rows_.reserve(options_.max_sequences);
  asked_.reserve(kMaxPrefetchDepth);
  queue_ = predictor_ != nullptr         ? predictor_->queue()
           : first_layer_ != nullptr     ? first_layer_->queue()
           : draft_predictor_ != nullptr ? draft_predictor_->queue()
                                         : nullptr;
  residency_->SetLeadListener(this);
}

Prefetcher::~Prefetcher() { residency_->SetLeadListener(nullptr); }

PredictionCounters Prefetcher::counters(uint32_t layer) const {
  PredictionCounters sum;
  for (uint32_t depth = 0; depth <= kMaxPrefetchDepth; ++depth) sum.Add(counters_at(layer, depth));
  return sum;
}

PredictionCounters Prefetcher::total() const {
  PredictionCounters sum;
  for (const PredictionCounters& count : counts_) sum.Add(count);
  return sum;
}

// Asks about the same layers as AfterRouter() would reach if all requested experts were already in flight.
absl::Status Prefetcher::BeforeChoice(const RouterState& state) {
  asked_.clear();
  if (neurons_ != nullptr) RETURN_IF_ERROR(neurons_->QueueCompare(state));
  if (scan_ || predictor_ == nullptr || (options_.look_ahead && !options_.in_reach)) return absl::OkStatus();
  uint32_t target = next_routed_[state.layer];
  for (uint32_t depth = 1; depth <= options_.depth && target != kNoLayer; ++depth) {
    if (depth > 1 && options_.deep_when_idle && !residency_->LinkIdle()) break;
    const bool looked_at = options_.in_reach ? (depth > 1 || !options_.look_ahead) && InReach(depth) : true;
    if (looked_at && MayPredict(target) && !residency_->AllResident(target)) {
      RETURN_IF_ERROR(predictor_->Ask(state, target));
      asked_.push_back(target);
    }
    target = next_routed_[target];
  }
  return absl::OkStatus();
}

// True if nothing was predicted about the layer, and nothing would be predicted from it.
bool Prefetcher::CanDeferRouting(uint32_t layer) const {
  if (AwaitsDevice()) return false;
  for (uint32_t depth = 0; depth <= options_.depth; ++depth) {
    if (predictions_[uint64_t{layer} * (kMaxPrefetchDepth + 1) + depth].step != 0) return false;
  }
  uint32_t target = next_routed_[layer];
  for (uint32_t depth = 1; depth <= options_.depth && target != kNoLayer; ++depth) {
    if (!residency_->AllResident(target)) return false;
    target = next_routed_[target];
  }
  return true;
}

absl::Status Prefetcher::AfterRouter(const RouterState& state) {
  RETURN_IF_ERROR(Continue());
  Compare(state);
  if (neurons_ != nullptr) RETURN_IF_ERROR(CompareNeurons(state));
  if (scan_) {
    const uint32_t next = next_routed_[state.layer];
    RequestAll(next != kNoLayer || !more_ ? next : first_routed_);
    return absl::OkStatus();
  }
  if (predictor_ == nullptr || (options_.look_ahead && !options_.in_reach)) return absl::OkStatus();
  RETURN_IF_ERROR(predictor_->Observe(state));
  if (options_.in_reach) return PredictInReach(state);
  uint32_t target = state.layer;
  for (uint32_t depth = 1; depth <= options_.depth; ++depth) {
    target = next_routed_[target];
    if (target == kNoLayer) break;
    if (depth > 1 && options_.deep_when_idle && !residency_->LinkIdle()) break;
    if (residency_->AllResident(target)) continue;
    ASSIGN_OR_RETURN(const bool fetched, PredictLayer(state, target, depth));
    if (fetched) break;
  }
  return absl::OkStatus();
}

void Prefetcher::RequestAll(uint32_t target) {
  if (target == kNoLayer || residency_->AllResident(target)) return;
  for (uint32_t expert = 0; expert < config_.layers[target].moe.experts; ++expert) {
    residency_->Prefetch(target, expert);
  }
}

// LookAhead() predicts the next layer, if that is the predictor.
absl::Status Prefetcher::PredictInReach(const RouterState& state) {
  uint32_t target = next_routed_[state.layer];
  for (uint32_t depth = 1; depth <= options_.depth && target != kNoLayer; ++depth) {
    const bool predicted = depth > 1 || !options_.look_ahead;
    if (predicted && InReach(depth) && !residency_->AllResident(target)) {
      RETURN_IF_ERROR(PredictLayer(state, target, depth).status());
    }
    target = next_routed_[target];
  }
  return absl::OkStatus();
}

// A layer whose experts are all resident is computed at once, and the next one's router runs right after it.
bool Prefetcher::WantsLookAhead(uint32_t layer) const {
  return !scan_ && options_.look_ahead && next_routed_[layer] == layer + 1 &&
         !residency_->AllResident(layer + 1) && (!options_.in_reach || InReach(1));
}

absl::Status Prefetcher::LookAhead(const RouterState& state) {
  if (!MayPredict(state.layer + 1)) return PredictLayer(state, state.layer + 1, 1).status();
  RETURN_IF_ERROR(predictor_->Ask(state, state.layer + 1));
  asked_.push_back(state.layer + 1);
  ahead_ = {state.batch->step(), queue_->Record(), state};
  return Continue();
}

bool Prefetcher::AwaitsDevice() const {
  return ahead_.step != 0 || first_.step != 0 || (neurons_ != nullptr && neurons_->AwaitsDevice());
}

absl::Status Prefetcher::Continue() {
  if (ahead_.step != 0 && queue_->IsDone(ahead_.queued)) {
    const bool same = ahead_.state.batch->step() == ahead_.step;  // false: that step has ended with an error
    ahead_.step = 0;
    if (same) RETURN_IF_ERROR(PredictLayer(ahead_.state, ahead_.state.layer + 1, 1).status());
  }
  if (first_.step != 0 && queue_->IsDone(first_.queued)) {
    PredictFirstLayer();
    first_.step = 0;
  }
  return neurons_ == nullptr ? absl::OkStatus() : neurons_->Continue();
}

// Returns true if an expert was lacking and requested.
absl::StatusOr<bool> Prefetcher::PredictLayer(const RouterState& state, uint32_t target, uint32_t depth) {
  const bool trusted = recall_.Trusts(target);
  if (!trusted && !recall_.Measures(target)) return false;
  const auto asked = std::find(asked_.begin(), asked_.end(), target);
  // A prediction that was not queued together with the router's choice would need a wait of its own.
  if (asked == asked_.end() && !queue_->RunsAtCall()) return false;
  absl::StatusOr<Routing> answer =
      asked == asked_.end() ? predictor_->Predict(state, target) : predictor_->Answer(state, target);
  if (asked != asked_.end()) asked_.erase(asked);
  ASSIGN_OR_RETURN(const Routing routing, std::move(answer));
  Prediction& prediction = at(target, depth);
  Remember(routing, target, &prediction);
  prediction.trusted = trusted;
  prediction.step = routing.tokens == 0 ? 0 : state.batch->step();
  for (uint32_t row = 0; row < prediction.tokens; ++row) {
    int32_t* ids = prediction.ids.data() + uint64_t{row} * prediction.top_k;
    uint32_t kept = state.batch->lost(row) ? 0 : prediction.top_k;
    if (kept > 0 && options_.gating.has_value() && state.batch->decodes(row)) {
      const float* chances = routing.weights + uint64_t{row} * routing.ranks;
      kept = ExpertsKept(absl::MakeConstSpan(chances, prediction.top_k),
                         options_.gating->sensitivities[target], options_.gating->threshold);
    }
    std::fill(ids + kept, ids + prediction.top_k, -1);
    for (uint32_t rank = 0; rank < kept && options_.confidence > 0; ++rank) {
      if (predictor_->Confidence(row, rank) < options_.confidence) ids[rank] = -1;
    }
  }
  if (neurons_ != nullptr && prediction.tokens > 0) {
    const auto ids =
        absl::MakeConstSpan(prediction.ids).first(uint64_t{prediction.tokens} * prediction.top_k);
    ASSIGN_OR_RETURN(const bool begun, neurons_->Begin(state, target, prediction.top_k, ids, !trusted));
    if (begun && trusted && options_.by_neuron) return true;
  }
  if (!trusted || AllComing(prediction, target)) return false;
  // Nearly all experts predicted for a prompt's rows will be used, so as many as arrive in time are
  // requested.
  const uint32_t rows = options_.in_reach ? prediction.tokens : 0;
  bool prompt = false;
  for (uint32_t row = 0; row < rows && !prompt; ++row) prompt = !state.batch->decodes(row);
  Request(prediction, routing, target, depth, prompt ? kAllExperts : options_.max_prefetch);
  return true;
}

// Leaves out choices that need no weights: experts that return their input.
void Prefetcher::Remember(const Routing& routing, uint32_t target, Prediction* prediction) const {
  const auto experts = static_cast<int32_t>(config_.layers[target].moe.experts);
  prediction->tokens = routing.tokens;
  prediction->top_k = routing.top_k;
  for (uint32_t row = 0; row < routing.tokens; ++row) {
    std::transform(routing.ids + uint64_t{row} * routing.ranks,
                   routing.ids + uint64_t{row} * routing.ranks + routing.top_k,
                   prediction->ids.begin() + uint64_t{row} * routing.top_k,
                   [experts](int32_t id) { return id < experts ? id : -1; });
  }
}

bool Prefetcher::AllComing(const Prediction& prediction, uint32_t target) const {
  const auto end = prediction.ids.begin() + uint64_t{prediction.tokens} * prediction.top_k;
  return std::all_of(prediction.ids.begin(), end, [&](int32_t id) {
    return id < 0 || residency_->IsComing(target, static_cast<uint32_t>(id));
  });
}

// Requests experts wanted by more rows first; with equal rows the likelier one.
void Prefetcher::Request(const Prediction& prediction, const Routing& routing, uint32_t target,
                         uint32_t depth, uint32_t most) {
  const uint32_t experts = config_.layers[target].moe.experts;
  for (uint32_t expert = 0; expert < experts; ++expert) ranking_[expert] = {expert, 0, 0};
  for (uint64_t i = 0; i < uint64_t{prediction.tokens} * prediction.top_k; ++i) {
    const uint32_t expert = static_cast<uint32_t>(prediction.ids[i]);
    if (expert >= experts) continue;
    ranking_[expert].tokens++;
    ranking_[expert].chance += routing.weights[i / prediction.top_k * routing.ranks + i % prediction.top_k];
  }
  const auto wanted_more = [this](const RankedExpert& a, const RankedExpert& b) {
    if (!options_.look_ahead && a.tokens != b.tokens) return a.tokens > b.tokens;
    return a.chance > b.chance || (a.chance == b.chance && a.expert < b.expert);
  };
  const uint32_t asked = std::min(most, experts);
  std::partial_sort(ranking_.begin(), ranking_.begin() + asked, ranking_.begin() + experts, wanted_more);
  // Resident experts first, so that requests for the others do not evict them.
  for (const bool there : {true, false}) {
    for (uint32_t i = 0; i < asked && ranking_[i].tokens > 0; ++i) {
      if (residency_->IsComing(target, ranking_[i].expert) == there) {
        if (!there && options_.in_reach && !InReach(depth)) return;
        residency_->Prefetch(target, ranking_[i].expert);
      }
    }
  }
}

absl::Status Prefetcher::BeforeExperts(uint32_t /*layer*/, const MoeExpertsArgs& /*args*/) {
  return Continue();
}

absl::Status Prefetcher::AfterLayer(const LayerEnd& end) {
  RETURN_IF_ERROR(Continue());
  RETURN_IF_ERROR(QueueFirstLayer(end));
  return Continue();
}

// Predicts the first layer for the token after the last row of each sequence.
absl::Status Prefetcher::QueueFirstLayer(const LayerEnd& end) {
  if (first_layer_ == nullptr || end.layer + 1 != config_.layers.size()) return absl::OkStatus();
  const uint32_t target = first_layer_->layer();
  at(target, 0).step = 0;
  drafted_sequences_.clear();
  last_rows_.clear();
  if (residency_->AllResident(target)) return absl::OkStatus();
  for (const SequenceRows& sequence : end.batch->sequences()) {
    const uint32_t last = sequence.first_row + sequence.rows - 1;
    if (sequence.rows == 0 || end.batch->lost(last)) continue;
    last_rows_.push_back(last);
    drafted_sequences_.push_back({sequence.pages.data(), sequence.first_position + sequence.rows});
  }
  if (last_rows_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(first_layer_->Ask(end, last_rows_));
  first_ = {end.batch->step(), queue_->Record(), {}};
  return absl::OkStatus();
}

void Prefetcher::PredictFirstLayer() {
  const uint32_t target = first_layer_->layer();
  Prediction& prediction = at(target, 0);
  const Routing routing = first_layer_->Answer();
  Remember(routing, target, &prediction);
  prediction.step = first_.step;
  Request(prediction, routing, target, 1, options_.max_prefetch);
}

bool Prefetcher::WantsNextTokens() {
  return !scan_ && draft_predictor_ != nullptr && !residency_->AllResident(0) &&
         (draft_recall_.Trusts(0) || draft_recall_.Measures(0));
}

absl::Status Prefetcher::NextTokens(const RouterState& state) {
  ASSIGN_OR_RETURN(const Routing routing, draft_predictor_->Predict(state, 0));
  Prediction& prediction = at(0, 0);
  Remember(routing, 0, &prediction);
  prediction.step = state.batch->step();
  drafted_sequences_.clear();
  for (const SequenceRows& sequence : state.batch->sequences()) {
    drafted_sequences_.push_back({sequence.pages.data(), sequence.first_position});
  }
  if (draft_recall_.Trusts(0)) Request(prediction, routing, 0, 1, options_.max_prefetch);
  return absl::OkStatus();
}

// The latest prediction is the most accurate one.
absl::Span<const int32_t> Prefetcher::Predicted(uint32_t layer, uint32_t row, uint64_t step) const {
  for (uint32_t depth = 1; depth <= options_.depth; ++depth) {
    const Prediction& prediction = predictions_[uint64_t{layer} * (kMaxPrefetchDepth + 1) + depth];
    if (prediction.step == step && step > 0 && prediction.trusted && row < prediction.tokens) {
      return absl::MakeConstSpan(prediction.ids.data() + uint64_t{row} * prediction.top_k, prediction.top_k);
    }
  }
  return {};
}

absl::Status Prefetcher::CompareNeurons(const RouterState& state) {
  const NeuronPredictions before = neurons_->counters(state.layer);
  RETURN_IF_ERROR(neurons_->Compare(state));
  const NeuronPredictions& after = neurons_->counters(state.layer);
  recall_.CountNeurons(state.layer, after.right - before.right, after.wanted - before.wanted);
  return absl::OkStatus();
}

void Prefetcher::Compare(const RouterState& state) {
  const PredictionCounters before = counters_at(state.layer, 1);
  const PredictionCounters ahead = counters_at(state.layer, 0);
  for (uint32_t depth = 0; depth <= options_.depth; ++depth) {
    Prediction& prediction = at(state.layer, depth);
    if (prediction.step == 0) continue;
    if (depth == 0) {
      CompareFirstLayer(state, prediction);
    } else if (prediction.step == state.batch->step()) {
      for (uint32_t row = 0; row < std::min(prediction.tokens, state.routing.tokens); ++row) {
        CountRow(state, row, prediction.ids.data() + uint64_t{row} * prediction.top_k, prediction.top_k,
                 depth);
      }
    }
    prediction.step = 0;
  }
  const PredictionCounters& after = counters_at(state.layer, 1);
  recall_.CountExperts(state.layer, after.right - before.right, after.wanted - before.wanted);
  if (draft_predictor_ != nullptr && state.layer == 0) {
    const PredictionCounters& now = counters_at(0, 0);
    draft_recall_.CountExperts(0, now.right - ahead.right, now.wanted - ahead.wanted);
  }
}

// Compares the rows of this step that follow the predicted rows, sequence by sequence.
void Prefetcher::CompareFirstLayer(const RouterState& state, const Prediction& prediction) {
  for (uint32_t i = 0; i < drafted_sequences_.size(); ++i) {
    for (const SequenceRows& sequence : state.batch->sequences()) {
      if (sequence.pages.data() == drafted_sequences_[i].pages &&
          sequence.first_position == drafted_sequences_[i].position) {
        CountRow(state, sequence.first_row, prediction.ids.data() + uint64_t{i} * prediction.top_k,
                 prediction.top_k, 0);
      }
    }
  }
}

void Prefetcher::CountRow(const RouterState& state, uint32_t row, const int32_t* predicted, uint32_t top_k,
                          uint32_t depth) {
  if (state.batch->lost(row)) return;
  const Routing& routing = state.wanted.tokens > 0 ? state.wanted : state.routing;
  const int32_t* chosen = routing.ids + uint64_t{row} * routing.ranks;
  const float* weights = routing.weights + uint64_t{row} * routing.ranks;
  PredictionCounters count;
  const auto experts = static_cast<int32_t>(config_.layers[state.layer].moe.experts);
  for (uint32_t rank = 0; rank < routing.top_k; ++rank) {
    count.wanted += weights[rank] != 0.0f && chosen[rank] < experts;
  }
  for (uint32_t i = 0; i < top_k; ++i) {
    if (predicted[i] < 0) continue;
    count.predicted++;
    bool right = false;
    for (uint32_t rank = 0; rank < routing.top_k; ++rank) {
      right = right || (weights[rank] != 0.0f && chosen[rank] == predicted[i]);
    }
    count.right += right;
    count.best_right += right && count.predicted == 1;
    count.best_found += predicted[i] == chosen[0];
  }
  count.rows = count.predicted > 0;
  counts_[uint64_t{state.layer} * (kMaxPrefetchDepth + 1) + depth].Add(count);
}

namespace {

absl::StatusOr<std::unique_ptr<NeuronPredictor>> MakeNeuronPredictor(const PrefetcherSetup& setup) {
  const Policies& policies = *setup.policies;
  if (policies.neuron_predictor == NeuronPredictorKind::kNone || !setup.residency->HasRoomAhead()) {
    return nullptr;
  }
  NeuronPredictorOptions options;
  options.order = policies.sparsity.order;
  if (policies.neuron_predictor == NeuronPredictorKind::kUpReuse) options.share = NeuronShareOf(policies);
  options.max_rows = std::min(options.max_rows, setup.max_tokens);
  options.max_behind = policies.max_prefetch;
  return NeuronPredictor::Create(
      options, {setup.config, &setup.weights->layers(), setup.backend, setup.sparsity, setup.residency});
}

absl::StatusOr<std::unique_ptr<ExpertPredictor>> MakeExpertPredictor(const PrefetcherSetup& setup,
                                                                     PredictorProfile profile) {
  switch (setup.policies->predictor) {
    case ExpertPredictorKind::kNone:
      return nullptr;
    case ExpertPredictorKind::kGateReuse:
      return GateReuse::Create(*setup.config, setup.weights, setup.backend, setup.max_tokens,
                               setup.policies->predictor_confidence > 0, setup.policies->predictor_depth);
    case ExpertPredictorKind::kLearned:
      return LearnedExperts::Create(*setup.config, std::move(profile), setup.backend);
    case ExpertPredictorKind::kLookahead:
      if (AnyScalesInputs(*setup.config)) {
        return absl::UnimplementedError(
            "--policy expert_predictor=lookahead: this model's routers scale the experts' inputs, so their "
            "outputs cannot be left out one by one");
      }
      return GateReuse::Create(*setup.config, setup.weights, setup.backend, setup.max_tokens,
                               setup.policies->predictor_confidence > 0, setup.policies->predictor_depth);
  }
  return absl::InternalError("an expert predictor of no known kind");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Prefetcher>> MakePrefetcher(const PrefetcherSetup& setup) {
  const Policies& policies = *setup.policies;
  PredictorProfile profile;
  if (policies.predictor == ExpertPredictorKind::kLearned || policies.first_layer) {
    ASSIGN_OR_RETURN(profile, ReadPredictors(setup.profile_dir, *setup.config, setup.model_id));
  }
  Prefetcher::Predictors made;
  if (policies.first_layer) {
    ASSIGN_OR_RETURN(made.first_layer,
                     FirstLayerPredictor::Create(*setup.config, profile, &setup.weights->final_norm(),
                                                 setup.backend, setup.max_tokens, setup.max_sequences));
  }
  ASSIGN_OR_RETURN(made.experts, MakeExpertPredictor(setup, std::move(profile)));
  ASSIGN_OR_RETURN(made.neurons, MakeNeuronPredictor(setup));
  if (policies.token_draft && CanDraftTokens(*setup.config)) {
    ASSIGN_OR_RETURN(made.draft, GateReuse::Create(*setup.config, setup.weights, setup.backend,
                                                   setup.max_sequences, /*confidence=*/false));
  }
  if (made.experts == nullptr && made.first_layer == nullptr && made.draft == nullptr) return nullptr;
  PrefetcherOptions options{.max_tokens = setup.max_tokens,
                            .max_sequences = setup.max_sequences,
                            .max_prefetch = policies.max_prefetch,
                            .depth = policies.predictor_depth,
                            .deep_when_idle = policies.cache != CacheKind::kLease,
                            .in_reach = FetchesInReach(policies),
                            .confidence = static_cast<float>(policies.predictor_confidence),
                            .recall = policies.predictor_recall,
                            .look_ahead = policies.predictor == ExpertPredictorKind::kLookahead,
                            .by_neuron = policies.granularity == CacheGranularity::kNeuron};
  if (policies.routing == RoutingKind::kSensitivity &&
      policies.predictor == ExpertPredictorKind::kGateReuse) {
    ASSIGN_OR_RETURN(options.gating, ResolveGating(policies.sensitivity, *setup.config, setup.profile_dir,
                                                   setup.source_digest));
  }
  return std::make_unique<Prefetcher>(*setup.config, std::move(options), std::move(made), setup.residency);
}

}  // namespace sluice::inferd
