// Selects the layers whose predictions are used (policy predictor_recall): those that recently found at least
// a given share of the experts, and of the neurons if they are predicted, that the layer then used. CORM's
// recall is 0.8 to 0.9. Below that, fetching predicted experts takes the link from needed ones, and computing
// them instead (`proceed`) costs more quality than it saves time. An untrusted layer is still predicted now
// and then for counting, so that trust can come and return.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inferd/model/expert_source.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/neuron_predictor.h"
#include "inferd/policy/routing.h"
#include "inferd/policy/sparsity.h"

namespace sluice::inferd {

class RecallFloor {
 public:
  // Counts needed before a share is valid, and the window over which old counts fade.
  static constexpr uint32_t kEnough = 24;
  static constexpr uint32_t kWindow = 64;
  // An untrusted layer is predicted in its first kFirst steps, then in one of kEvery.
  static constexpr uint32_t kFirst = 32;
  static constexpr uint32_t kEvery = 32;

  // `floor` 0: every layer is trusted from the start. `neurons`: neurons are predicted too.
  RecallFloor(double floor, size_t layers, bool neurons)
      : floor_(floor), neurons_(neurons), layers_(layers) {}

  bool Trusts(uint32_t layer) const {
    const Layer& l = layers_[layer];
    return floor_ <= 0 || (Reaches(l.experts) && (!neurons_ || Reaches(l.neurons)));
  }
  // True if an untrusted layer is predicted this time.
  bool Measures(uint32_t layer) {
    const bool measures = WouldMeasure(layer);
    ++layers_[layer].steps;
    return measures;
  }
  // Result of the next Measures(), without a change of state.
  bool WouldMeasure(uint32_t layer) const {
    const uint32_t step = layers_[layer].steps;
    return step < kFirst || step % kEvery == 0;
  }

  // Counts of one step: targets of the predictions, and correct ones among them. Without targets nothing
  // changes.
  void CountExperts(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].experts);
  }
  void CountNeurons(uint32_t layer, uint64_t right, uint64_t wanted) {
    Count(right, wanted, &layers_[layer].neurons);
  }

 private:
  struct Share {
    double mean = 0;  // plain mean of the first kWindow counts, then an exponential one
    uint32_t counts = 0;
  };
  struct Layer {
    Share experts;
    Share neurons;
    uint32_t steps = 0;
  };

  bool Reaches(const Share& share) const { return share.counts >= kEnough && share.mean >= floor_; }
  static void Count(uint64_t right, uint64_t wanted, Share* share) {
    if (wanted == 0) return;
    share->counts += share->counts < kWindow ? 1 : 0;
    share->mean += (static_cast<double>(right) / static_cast<double>(wanted) - share->mean) / share->counts;
  }

  const double floor_;
  const bool neurons_;
  std::vector<Layer> layers_;
};

// Turns predictions into prefetches, and counts their accuracy.
//
// With `look_ahead` (importance-driven 5.2) the next layer is predicted once the resident experts have been
// computed while others travel, and its best missing experts are requested first. Otherwise, once the router
// of a layer has run, the experts of the next layer with experts are predicted; those wanted by more rows are
// requested first. If all of them are resident or in flight, the layer after it is predicted, up to `depth`
// layers ahead (AdapMoE 4.3); the first layer that lacks an expert ends the search. With a first-layer gate
// the next step's first layer is prefetched when the last layer is done. With a predictor for draft tokens it
// is prefetched earlier, while experts of the last layer travel, as long as half of the experts so predicted
// are right. When a predicted layer's router runs, its choice is compared with every prediction about it.
//
// In a step that uses nearly every expert, as long prompts do, nothing is predicted: all experts that the
// next layer lacks are requested, and at the last layer those that the first one of the next such step lacks.
//
// On an asynchronous device, the inputs of predictions are queued before the host waits for the layer's
// router (BeforeChoice), so that one wait serves both; work queued afterwards is read once it is done, at the
// latest when the next layer's router is known to be.
//
// Thread safety: thread-compatible; belongs to the engine thread.

// Counts of one layer: pairs (row, expert) predicted, and pairs that the router then chose for the same row.
struct PredictionCounters {
  uint64_t predicted = 0;
  uint64_t right = 0;
  uint64_t wanted = 0;      // experts that the router chose in rows with a prediction
  uint64_t rows = 0;        // rows with a prediction
  uint64_t best_right = 0;  // rows whose best predicted expert was chosen
  uint64_t best_found = 0;  // rows whose best chosen expert was predicted

  void Add(const PredictionCounters& other) {
    predicted += other.predicted;
    right += other.right;
    wanted += other.wanted;
    rows += other.rows;
    best_right += other.best_right;
    best_found += other.best_found;
  }
};

struct PrefetcherOptions {
  uint32_t max_tokens = 0;
  uint32_t max_sequences = 0;
  uint32_t max_prefetch = 16;   // experts of a layer that one step asks for
  uint32_t depth = 1;           // maximum layers ahead, 1..3
  bool deep_when_idle = false;  // beyond the next layer only while nothing travels
  // Requests only experts that arrive when their layer is computed, or one layer later; the nearest layer
  // ahead comes first.
  bool in_reach = false;
  float confidence = 0;  // minimum confidence of a predicted expert
  double recall = 0;     // minimum recall; layers below it are only counted
  bool look_ahead = false;
  // Predictions omit the experts that this rule would leave out (decode rows).
  std::optional<GatingRule> gating;
  bool by_neuron = false;  // fetch the neurons that are predicted, not whole experts
};

class Prefetcher final : public LayerObserver, public ExpertPredictions, public LeadListener {
 public:
  static constexpr uint32_t kMaxPrefetchDepth = 3;
  // Minimum share of correct experts for which a draft token's experts are fetched: a wrong one costs reads
  // at a time when the disk would be idle, and evicts other experts.
  static constexpr double kMinDraftRecall = 0.5;

  // Predictors; null if the options do not use them.
  struct Predictors {
    std::unique_ptr<ExpertPredictor> experts;
    std::unique_ptr<FirstLayerPredictor> first_layer;
    std::unique_ptr<NeuronPredictor> neurons;
    std::unique_ptr<ExpertPredictor> draft;  // first layer, for draft tokens
  };
  // `residency` outlives the prefetcher.
  Prefetcher(const ModelConfig& config, PrefetcherOptions options, Predictors predictors,
             ExpertPrefetch* residency);
  ~Prefetcher() override;

  absl::Status BeforeChoice(const RouterState& state) override;
  bool CanDeferRouting(uint32_t layer) const override;
  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) override;
  absl::Status AfterLayer(const LayerEnd& end) override;
  bool WantsLookAhead(uint32_t layer) const override;
  absl::Status LookAhead(const RouterState& state) override;
  bool WantsNextTokens() override;
  absl::Status NextTokens(const RouterState& state) override;
  absl::Status OnLeads() override { return Continue(); }
  bool AwaitsDevice() const override;
  // `scan`: the following steps use nearly every expert, as long prompts do. Then nothing is predicted, and
  // all experts that the next layer lacks are requested in the pack's order. `more`: the step after them is a
  // scan too.
  void SetScan(bool scan, bool more) {
    scan_ = scan;
    more_ = more;
  }
  // Processes queued work that is done by now. Called by the engine at a step's end.
  absl::Status Continue();

  absl::Span<const int32_t> Predicted(uint32_t layer, uint32_t row, uint64_t step) const override;

  // Sum over all depths. For the first layer: its gate's counts.
  PredictionCounters counters(uint32_t layer) const;
  PredictionCounters total() const;
  // Counts of one layer for predictions `depth` layers ahead (1..kMaxPrefetchDepth; 0: the first layer's
  // gate).
  const PredictionCounters& counters_at(uint32_t layer, uint32_t depth) const {
    return counts_[uint64_t{layer} * (kMaxPrefetchDepth + 1) + depth];
  }
  // Neurons of a layer's experts; zeros without a neuron predictor.
  NeuronPredictions neuron_predictions(uint32_t layer) const {
    return neurons_ == nullptr ? NeuronPredictions{} : neurons_->counters(layer);
  }

 private:
  static constexpr uint32_t kNoLayer = 0xffffffffu;
  static constexpr uint32_t kAllExperts = 0xffffffffu;

  // A prediction of a layer from some depth.
  struct Prediction {
    uint64_t step = 0;  // step of the prediction; 0: none
    uint32_t tokens = 0;
    uint32_t top_k = 0;
    bool trusted = true;       // false: it is only counted
    std::vector<int32_t> ids;  // [tokens, top_k]; -1: left out
  };
  // A sequence whose next token's first layer was predicted.
  struct DraftedSequence {
    const uint32_t* pages = nullptr;  // identifies the sequence
    uint32_t position = 0;            // of the next token
  };

  // Expected demand of a layer for an expert.
  struct RankedExpert {
    uint32_t expert = 0;
    uint32_t tokens = 0;
    float chance = 0;  // sum of the predicted weights
  };

  Prediction& at(uint32_t layer, uint32_t depth) {
    return predictions_[uint64_t{layer} * (kMaxPrefetchDepth + 1) + depth];
  }
  // Queued work about a later layer whose result was not read yet.
  struct PendingPrediction {
    uint64_t step = 0;  // 0: none
    Event queued;
    RouterState state;
  };

  void RequestAll(uint32_t target);
  absl::Status QueueFirstLayer(const LayerEnd& end);
  void PredictFirstLayer();
  bool MayPredict(uint32_t target) const { return recall_.Trusts(target) || recall_.WouldMeasure(target); }
  void Compare(const RouterState& state);
  absl::Status CompareNeurons(const RouterState& state);
  void CompareFirstLayer(const RouterState& state, const Prediction& prediction);
  void CountRow(const RouterState& state, uint32_t row, const int32_t* predicted, uint32_t top_k,
                uint32_t depth);
  absl::StatusOr<bool> PredictLayer(const RouterState& state, uint32_t target, uint32_t depth);
  void Remember(const Routing& routing, uint32_t target, Prediction* prediction) const;
  bool AllComing(const Prediction& prediction, uint32_t target) const;
  void Request(const Prediction& prediction, const Routing& routing, uint32_t target, uint32_t depth,
               uint32_t most);
  absl::Status PredictInReach(const RouterState& state);
  // True if an expert requested now arrives in time for a layer so far ahead.
  bool InReach(uint32_t depth) const { return residency_->LayersToFetch() <= depth + 1; }

  const ModelConfig& config_;
  const PrefetcherOptions options_;
  const std::unique_ptr<ExpertPredictor> predictor_;
  const std::unique_ptr<FirstLayerPredictor> first_layer_;
  const std::unique_ptr<NeuronPredictor> neurons_;
  const std::unique_ptr<ExpertPredictor> draft_predictor_;
  ExpertPrefetch* const residency_;

  std::vector<Prediction> predictions_;             // by layer and depth 0..kMaxPrefetchDepth
  std::vector<DraftedSequence> drafted_sequences_;  // sequences of the first layer's prediction, by its rows
  std::vector<uint32_t> last_rows_;                 // rows for the first layer's gate
  std::vector<RankedExpert> ranking_;               // [most experts]
  std::vector<uint32_t> next_routed_;               // by layer: the next one with experts, or kNoLayer
  uint32_t first_routed_ = kNoLayer;
  std::vector<PredictionCounters> counts_;  // by layer and depth
  RecallFloor recall_;
  RecallFloor draft_recall_;     // trust in draft tokens; index 0 only
  Queue* queue_ = nullptr;       // queue of the predictors; null without any
  std::vector<uint32_t> asked_;  // layers asked for the running layer
  bool scan_ = false;
  bool more_ = false;
  PendingPrediction ahead_;  // look-ahead prediction of the next layer
  PendingPrediction first_;  // prediction of the first layer's gate
};

// Makes the prefetcher for the policies; null if they use none. Networks come from `profile_dir`.
struct PrefetcherSetup {
  const Policies* policies = nullptr;
  const ModelConfig* config = nullptr;
  const DenseWeights* weights = nullptr;
  const SparsityPolicy* sparsity = nullptr;
  Backend* backend = nullptr;
  ExpertPrefetch* residency = nullptr;
  uint32_t max_tokens = 0;
  uint32_t max_sequences = 0;
  std::string profile_dir;
  std::string source_digest;
  std::string model_id;
};
absl::StatusOr<std::unique_ptr<Prefetcher>> MakePrefetcher(const PrefetcherSetup& setup);

}  // namespace sluice::inferd
