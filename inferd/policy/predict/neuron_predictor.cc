#include "inferd/policy/predict/neuron_predictor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/predict/neuron_sets.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kWordBits = 64;

uint32_t WordsFor(uint64_t bits) { return static_cast<uint32_t>((bits + kWordBits - 1) / kWordBits); }

}  // namespace

double NeuronShareOf(const Policies& policies) {
  constexpr double kUsualTarget = 0.8;
  return 1 - policies.sparsity.target.value_or(kUsualTarget);
}

NeuronPredictor::NeuronPredictor(const NeuronPredictorOptions& options, NeuronThresholds thresholds,
                                 const Parts& parts)
    : options_(options),
      thresholds_(std::move(thresholds)),
      config_(*parts.config),
      layers_(*parts.layers),
      backend_(parts.backend),
      residency_(parts.residency),
      counters_(config_.layers.size()) {}

absl::StatusOr<std::unique_ptr<NeuronPredictor>> NeuronPredictor::Create(
    const NeuronPredictorOptions& options, NeuronThresholds thresholds, const Parts& parts) {
  if (options.order != SparsityOrder::kUp && options.order != SparsityOrder::kGate) {
    return absl::InvalidArgumentError(
        absl::StrCat("neurons are predicted from an up or a gate part, not under --sparsity ",
                     SparsityWord(options.order)));
  }
  if (AnyScalesInputs(*parts.config)) {
    return absl::UnimplementedError(
        "neuron predictors do not know models whose router scales the experts' inputs");
  }
  std::unique_ptr<NeuronPredictor> made(new NeuronPredictor(options, std::move(thresholds), parts));
  RETURN_IF_ERROR(made->Allocate());
  return made;
}

absl::Status NeuronPredictor::Allocate() {
  uint64_t width = 0;
  for (const LayerConfig& layer : config_.layers) width = std::max<uint64_t>(width, layer.moe.expert_width);
  const uint64_t rows = options_.max_rows;
  const uint64_t pairs = rows * LargestTopK(config_);
  if (options_.input == NeuronInput::kNormed) {
    ASSIGN_OR_RETURN(const BufferId normed,
                     backend_->Allocate(rows * config_.hidden * sizeof(float), BufferKind::kActivations));
    normed_ = {{normed, 0}, config_.hidden};
  }
  for (Rows* products : {&products_, &true_products_}) {
    ASSIGN_OR_RETURN(const BufferId buffer,
                     backend_->Allocate(pairs * width * sizeof(float), BufferKind::kStaging));
    *products = {{buffer, 0}, width};
  }
  work_.reserve(MaxExperts(config_));
  guesses_.reserve(MaxExperts(config_));
  rows_.resize(pairs);
  masks_.resize(pairs * WordsFor(width));
  union_.resize(WordsFor(width));
  neurons_.reserve(width);
  values_.resize(width);
  return absl::OkStatus();
}

absl::StatusOr<bool> NeuronPredictor::Begin(const RouterState& state, uint32_t target, uint32_t top_k,
                                            absl::Span<const int32_t> ids, bool only_counts) {
  only_counts_ = only_counts;
  step_ = 0;
  waiting_ = queued_ = 0;
  tokens_ = state.routing.tokens;
  if (tokens_ > options_.max_rows) return false;
  target_ = target;
  width_ = config_.layers[target].moe.expert_width;
  words_ = WordsFor(width_);
  MakeGuesses(tokens_, top_k, ids);
  if (guesses_.empty()) return false;
  input_ = state.normed;
  if (options_.input == NeuronInput::kNormed) {
    RETURN_IF_ERROR(backend_->queue().Norm(
        {state.residual, tokens_, config_.hidden, layers_[target].ExpertsNorm(), normed_}));
    input_ = normed_;
  }
  step_ = state.batch->step();
  for (const Guess& guess : guesses_) {
    if (!only_counts_ && !residency_->Lead(target_, guess.expert).has_value()) {
      residency_->PrefetchNeurons(target_, guess.expert, {});
    }
  }
  RETURN_IF_ERROR(Continue());
  return true;
}

// Builds guesses by expert id, each with its rows. Experts with enough neurons are kept first, so that
// experts that lack more do not evict them.
void NeuronPredictor::MakeGuesses(uint32_t tokens, uint32_t top_k, absl::Span<const int32_t> ids) {
  guesses_.clear();
  uint32_t used = 0;
  const bool behind = !only_counts_ && options_.enough <= 1 && residency_->IsBehind();
  const uint32_t ranks = behind ? std::min(top_k, options_.max_behind) : top_k;
  for (uint32_t expert = 0; expert < config_.layers[target_].moe.experts; ++expert) {
    Guess guess{expert, used, 0};
    for (uint32_t pair = 0; pair < tokens * top_k; ++pair) {
      const bool named = ids[pair] == static_cast<int32_t>(expert) && pair % top_k < ranks;
      if (named) rows_[used++] = pair / top_k;
    }
    guess.count = used - guess.first;
    if (guess.count > 0 && !only_counts_ && residency_->NeuronShare(target_, expert) >= options_.enough) {
      residency_->PrefetchNeurons(target_, expert, {});
      used = guess.first;
    } else if (guess.count > 0) {
      guesses_.push_back(guess);
    }
  }
  waiting_ = static_cast<uint32_t>(guesses_.size());
}

absl::Status NeuronPredictor::Continue() {
  if (step_ == 0) return absl::OkStatus();
  if (queued_ > 0 && backend_->queue().IsDone(last_queued_)) RETURN_IF_ERROR(TakeLeads());
  if (waiting_ == 0) return absl::OkStatus();
  RETURN_IF_ERROR(QueueLeads());
  return queued_ > 0 && backend_->queue().IsDone(last_queued_) ? TakeLeads() : absl::OkStatus();
}

void NeuronPredictor::AddWork(const Guess& guess, const WeightView& lead, const Rows& products) {
  const LayerWeights& w = layers_[target_];
  const WeightView& biases = options_.order == SparsityOrder::kUp ? w.up_biases : w.gate_biases;
  LeadWork& work = work_.emplace_back();
  work.lead = lead;
  work.rows = absl::MakeConstSpan(rows_).subspan(guess.first, guess.count);
  work.bias = config_.layers[target_].moe.expert_bias ? biases.base + uint64_t{guess.expert} * biases.stride
                                                      : BufferRef{};
  work.values = {products.base + guess.first * products.stride * sizeof(float), products.stride};
}

absl::Status NeuronPredictor::QueueWork(const Rows& x) {
  if (work_.empty()) return absl::OkStatus();
  const MoeConfig& moe = config_.layers[target_].moe;
  ExpertLeadsArgs args;
  args.x = x;
  args.tokens = tokens_;
  args.hidden = config_.hidden;
  args.activation = {moe.activation, moe.activation_alpha, moe.activation_limit};
  args.order = options_.order;
  args.experts = work_;
  return backend_->queue().ExpertLeads(args);
}

absl::Status NeuronPredictor::QueueLeads() {
  work_.clear();
  for (Guess& guess : guesses_) {
    if (guess.queued) continue;
    const std::optional<WeightView> lead = residency_->Lead(target_, guess.expert);
    if (!lead.has_value()) continue;
    AddWork(guess, *lead, products_);
    guess.queued = true;
    --waiting_;
    ++queued_;
  }
  if (work_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(QueueWork(input_));
  last_queued_ = backend_->queue().Record();
  for (const Guess& guess : guesses_) {
    if (guess.queued && !guess.done) residency_->LeadRead(target_, guess.expert, last_queued_);
  }
  return absl::OkStatus();
}

absl::Status NeuronPredictor::TakeLeads() {
  for (Guess& guess : guesses_) {
    if (!guess.queued || guess.done) continue;
    const float threshold = thresholds_.predicted(target_, guess.expert);
    for (uint32_t pair = guess.first; pair < guess.first + guess.count; ++pair) {
      ASSIGN_OR_RETURN(const absl::Span<float> values, Values(products_, pair));
      if (options_.set == NeuronSet::kShare) {
        ChooseByShare(values, options_.share, mask(pair));
      } else {
        ChooseByThreshold(values, threshold, mask(pair));
      }
    }
    guess.done = true;
    --queued_;
    if (!only_counts_) Request(guess);
  }
  return absl::OkStatus();
}

// Requests the union of the neurons that its rows want.
void NeuronPredictor::Request(const Guess& guess) {
  std::fill_n(union_.begin(), words_, 0);
  for (uint32_t i = 0; i < guess.count; ++i) {
    const absl::Span<const uint64_t> one = mask(guess.first + i);
    for (uint32_t word = 0; word < words_; ++word) union_[word] |= one[word];
  }
  neurons_.clear();
  for (uint32_t word = 0; word < words_; ++word) {
    for (uint64_t bits = union_[word]; bits != 0; bits &= bits - 1) {
      neurons_.push_back(word * kWordBits + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  residency_->PrefetchNeurons(target_, guess.expert, neurons_);
}

absl::StatusOr<absl::Span<float>> NeuronPredictor::Values(const Rows& products, uint32_t pair) {
  const auto* from = reinterpret_cast<const float*>(
      backend_->HostRead(products.base + pair * products.stride * sizeof(float), width_ * sizeof(float)));
  if (from == nullptr) return absl::InternalError("the neuron predictor's products cannot be read");
  std::transform(from, from + width_, values_.begin(), [](float value) { return std::abs(value); });
  return absl::MakeSpan(values_).first(width_);
}

// Compares every row that was predicted to choose an expert, though some rows will not choose it.
absl::Status NeuronPredictor::QueueCompare(const RouterState& state) {
  if (step_ == 0 || state.batch->step() != step_ || state.layer != target_ || !Counts())
    return absl::OkStatus();
  work_.clear();
  for (Guess& guess : guesses_) {
    const std::optional<WeightView> lead = residency_->Lead(target_, guess.expert);
    guess.compared = guess.queued && lead.has_value();
    if (guess.compared) AddWork(guess, *lead, true_products_);
  }
  RETURN_IF_ERROR(QueueWork(state.normed));
  const Event queued = backend_->queue().Record();
  for (const Guess& guess : guesses_) {
    if (guess.compared) residency_->LeadRead(target_, guess.expert, queued);
  }
  compares_ = step_;
  return absl::OkStatus();
}

absl::Status NeuronPredictor::Compare(const RouterState& state) {
  if (state.batch->step() != step_) step_ = 0;  // the predicted step ended with an error
  if (step_ == 0 || state.layer != target_) return absl::OkStatus();
  if (Counts()) {
    if (compares_ != step_) {
      RETURN_IF_ERROR(QueueCompare(state));
      RETURN_IF_ERROR(backend_->queue().Wait(backend_->queue().Record()));
    }
    for (const Guess& guess : guesses_) {
      if (guess.done && guess.compared) RETURN_IF_ERROR(CompareGuess(guess, state));
    }
  }
  step_ = compares_ = 0;
  return absl::OkStatus();
}

// Compares the rows that were predicted to choose the expert and did.
absl::Status NeuronPredictor::CompareGuess(const Guess& guess, const RouterState& state) {
  const Routing& routing = state.routing;
  const float threshold = thresholds_.actual(target_, guess.expert);
  NeuronPredictions& sum = counters_[target_];
  for (uint32_t pair = guess.first; pair < guess.first + guess.count; ++pair) {
    const uint32_t row = rows_[pair];
    const int32_t* ids = routing.ids + uint64_t{row} * routing.ranks;
    const float* weights = routing.weights + uint64_t{row} * routing.ranks;
    for (uint32_t rank = 0; rank < routing.top_k && !state.batch->lost(row); ++rank) {
      if (ids[rank] != static_cast<int32_t>(guess.expert) || weights[rank] == 0.0f) continue;
      ASSIGN_OR_RETURN(const absl::Span<float> values, Values(true_products_, pair));
      ChooseByThreshold(values, threshold, absl::MakeSpan(union_).first(words_));
      const absl::Span<const uint64_t> predicted = mask(pair);
      for (uint32_t word = 0; word < words_; ++word) {
        sum.predicted += static_cast<uint64_t>(std::popcount(predicted[word]));
        sum.wanted += static_cast<uint64_t>(std::popcount(union_[word]));
        sum.right += static_cast<uint64_t>(std::popcount(predicted[word] & union_[word]));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
