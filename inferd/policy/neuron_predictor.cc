#include "inferd/policy/neuron_predictor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

constexpr size_t kSetWordBits = 64;
// Number of guesses at the last selected value before the interval is only halved.
constexpr int kMaxInterpolations = 8;

// Integers in the order of the values; -0 is below 0, and a NaN of positive sign above everything.
int32_t OrderedBits(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

float ValueOf(int64_t order) {
  const auto bits = static_cast<int32_t>(order);
  return std::bit_cast<float>(bits ^ ((bits >> 31) & 0x7fffffff));
}

// Packs whole words at a time: bytes of 0 and 1 by vectors, then eight of them into a byte by one product, in
// which byte i meets bit 63 - 7 (i + 1) and nothing is carried.
template <class Takes>
void Mark(absl::Span<const float> values, absl::Span<uint64_t> chosen, Takes takes) {
  constexpr uint64_t kGather = 0x0102040810204080;
  for (size_t word = 0; word < chosen.size(); ++word) {
    const auto part = values.subspan(std::min(values.size(), word * kSetWordBits), kSetWordBits);
    uint64_t bits = 0;
    if (part.size() == kSetWordBits) {
      std::array<uint8_t, kSetWordBits> taken;
      for (size_t i = 0; i < kSetWordBits; ++i) taken[i] = takes(part[i]);
      for (size_t i = 0; i < kSetWordBits; i += 8) {
        uint64_t eight = 0;
        std::memcpy(&eight, &taken[i], sizeof(eight));
        bits |= (eight * kGather >> 56) << i;
      }
    } else {
      for (size_t i = 0; i < part.size(); ++i) bits |= uint64_t{takes(part[i])} << i;
    }
    chosen[word] = bits;
  }
}

uint32_t CountFrom(absl::Span<const float> values, int32_t order) {
  uint32_t count = 0;
  for (const float value : values) count += OrderedBits(value) >= order ? 1 : 0;
  return count;
}

double MeanOf(absl::Span<const float> values) {
  std::array<float, 16> sums{};
  size_t i = 0;
  for (; i + sums.size() <= values.size(); i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += values[i + lane];
  }
  for (; i < values.size(); ++i) sums[0] += values[i];
  double sum = 0;
  for (const float lane : sums) sum += lane;
  return sum / static_cast<double>(values.size());
}

// The largest order that at least `wanted` values reach, and the number of values that reach it.
struct Least {
  int64_t order = 0;
  uint32_t count = 0;
};

// Searches by counting: a count is vectorized and has no unpredictable branches, while a selection by
// comparing took half of FloE's own time, and one by digits a third. To need few counts, it guesses that the
// values' magnitudes are exponentially distributed with their mean, until there is a count on either side of
// `wanted` (each guess aims a little beyond, so that the next one is on the other side); then it interpolates
// between the two nearest counts. Wrong guesses cost only time. REQUIRES: 0 < wanted.
Least LeastOf(absl::Span<const float> values, uint32_t wanted) {
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  constexpr int64_t kBeyond = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  Least least{kLowest, static_cast<uint32_t>(values.size())};
  Least above{kBeyond, 0};
  const double mean = MeanOf(values);
  double guess = -mean * std::log(static_cast<double>(wanted) / static_cast<double>(values.size()));
  for (int pass = 0; above.order - least.order > 1 && least.count != wanted; ++pass) {
    const int64_t guessed = OrderedBits(static_cast<float>(guess));
    const bool inside = pass < kMaxInterpolations && guessed > least.order && guessed < above.order;
    const int64_t order = inside ? guessed : least.order + (above.order - least.order) / 2;
    const uint32_t count = CountFrom(values, static_cast<int32_t>(order));
    (count >= wanted ? least : above) = {order, count};
    if (least.order == kLowest || above.order == kBeyond) {
      const double aim = count >= wanted ? 0.95 * wanted - 0.5 : 1.05 * wanted + 0.5;
      guess = ValueOf(order) + mean * std::log(std::max(count, 1u) / std::max(aim, 0.5));
    } else {
      const double low = ValueOf(least.order);
      guess = low + (ValueOf(above.order) - low) * (least.count - wanted + 0.5) / (least.count - above.count);
    }
  }
  return least;
}

}  // namespace

void ChooseByThreshold(absl::Span<const float> values, float threshold, absl::Span<uint64_t> chosen) {
  Mark(values, chosen, [threshold](float value) { return value >= threshold; });
}

void ChooseByShare(absl::Span<const float> values, double share, absl::Span<uint64_t> chosen) {
  const double all = static_cast<double>(values.size());
  const auto wanted = static_cast<uint32_t>(std::clamp(std::ceil(share * all - 1e-9), 0.0, all));
  if (wanted == 0) {
    std::fill(chosen.begin(), chosen.end(), 0);
    return;
  }
  const Least found = LeastOf(values, wanted);
  const auto least = static_cast<int32_t>(found.order);
  if (found.count == wanted) {
    Mark(values, chosen, [least](float value) { return OrderedBits(value) >= least; });
    return;
  }
  Mark(values, chosen, [least](float value) { return OrderedBits(value) > least; });
  uint32_t left = wanted;
  for (const uint64_t word : chosen) left -= static_cast<uint32_t>(std::popcount(word));
  for (size_t i = 0; left > 0; ++i) {
    if (OrderedBits(values[i]) == least) {
      chosen[i / kSetWordBits] |= uint64_t{1} << i % kSetWordBits;
      --left;
    }
  }
}

namespace {

constexpr uint32_t kWordBits = 64;

uint32_t WordsFor(uint64_t bits) { return static_cast<uint32_t>((bits + kWordBits - 1) / kWordBits); }

}  // namespace

double NeuronShareOf(const Policies& policies) {
  constexpr double kUsualTarget = 0.8;
  return 1 - policies.sparsity.target.value_or(kUsualTarget);
}

NeuronPredictor::NeuronPredictor(const NeuronPredictorOptions& options, const Parts& parts)
    : options_(options),
      sparsity_(*parts.sparsity),
      config_(*parts.config),
      layers_(*parts.layers),
      backend_(parts.backend),
      residency_(parts.residency),
      counters_(config_.layers.size()) {}

absl::StatusOr<std::unique_ptr<NeuronPredictor>> NeuronPredictor::Create(
    const NeuronPredictorOptions& options, const Parts& parts) {
  if (options.order != SparsityOrder::kUp && options.order != SparsityOrder::kGate) {
    return absl::InvalidArgumentError(
        absl::StrCat("neurons are predicted from an up or a gate part, not under --sparsity ",
                     SparsityWord(options.order)));
  }
  if (AnyScalesInputs(*parts.config)) {
    return absl::UnimplementedError(
        "neuron predictors do not know models whose router scales the experts' inputs");
  }
  std::unique_ptr<NeuronPredictor> made(new NeuronPredictor(options, parts));
  RETURN_IF_ERROR(made->Allocate());
  return made;
}

absl::Status NeuronPredictor::Allocate() {
  uint64_t width = 0;
  for (const LayerConfig& layer : config_.layers) width = std::max<uint64_t>(width, layer.moe.expert_width);
  const uint64_t rows = options_.max_rows;
  const uint64_t pairs = rows * LargestTopK(config_);
  ASSIGN_OR_RETURN(const BufferId normed,
                   backend_->Allocate(rows * config_.hidden * sizeof(float), BufferKind::kActivations));
  normed_ = {{normed, 0}, config_.hidden};
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
  const NormSpec& norm = layers_[target].ExpertsNorm();
  Queue& queue = backend_->queue();
  RETURN_IF_ERROR(norm.weight ? queue.Norm({state.residual, tokens_, config_.hidden, norm, normed_})
                              : queue.Combine({state.residual, {}, tokens_, 1, config_.hidden, {}, normed_}));
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
  const bool behind = !only_counts_ && residency_->IsBehind();
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
  RETURN_IF_ERROR(QueueWork(normed_));
  last_queued_ = backend_->queue().Record();
  for (const Guess& guess : guesses_) {
    if (guess.queued && !guess.done) residency_->LeadRead(target_, guess.expert, last_queued_);
  }
  return absl::OkStatus();
}

absl::Status NeuronPredictor::TakeLeads() {
  for (Guess& guess : guesses_) {
    if (!guess.queued || guess.done) continue;
    const float threshold = sparsity_.threshold(target_, guess.expert);
    for (uint32_t pair = guess.first; pair < guess.first + guess.count; ++pair) {
      ASSIGN_OR_RETURN(const absl::Span<float> values, Values(products_, pair));
      if (options_.share.has_value()) {
        ChooseByShare(values, *options_.share, mask(pair));
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
  const float threshold = sparsity_.threshold(target_, guess.expert);
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
