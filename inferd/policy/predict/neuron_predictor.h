// Neuron predictors: which neurons of the experts predicted for a layer ahead will count? That layer's own
// lead is multiplied with what the current layer has: `up_reuse` (FloE 3.3.2) with its up part, `gate_reuse`
// (CORM 4.2) with its gate part. The input is x_l, the current router's input (both papers), or the residual
// under the target layer's norm.
//
// An expert whose lead is not on the device is asked for with no neurons, which fetches the lead; it is
// predicted when the lead has come (CORM's two phases), at the next of Continue()'s calls.
//
// What was predicted is compared with what counts when the target's router has run: for every (row, expert)
// that was both predicted and chosen, the lead's product with the true input against the threshold of the
// sparsity.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/experts/expert_prefetch.h"
#include "inferd/model/dense_tensors.h"
#include "inferd/policy/predict/predictor.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/policy/sparsity/neuron_thresholds.h"
#include "kernels/backend.h"

namespace sluice {

// Neurons of (row, expert) pairs that were both predicted and chosen.
struct NeuronPredictions {
  uint64_t predicted = 0;
  uint64_t right = 0;   // of these: they count
  uint64_t wanted = 0;  // that count
};

// Of an expert's neurons, for NeuronSet::kShare: as the policies say, else what the sparsity's target keeps,
// else FloE's fifth.
double NeuronShareOf(const Policies& policies);

struct NeuronPredictorOptions {
  SparsityOrder order = SparsityOrder::kGate;  // kUp: up_reuse, kGate: gate_reuse
  NeuronSet set = NeuronSet::kThreshold;
  double share = 0.2;  // NeuronSet::kShare
  NeuronInput input = NeuronInput::kHidden;
  uint32_t max_rows = 64;     // of a step; nothing is predicted for longer ones
  uint32_t count_every = 32;  // steps: the true set of one in so many is computed to be counted
  uint32_t most_behind = 16;  // predicted experts of a row that count while the link is behind
  // Experts that have this share of their neurons are kept and not predicted: what they may lack is worth
  // less than the product. Above 1: all are predicted, to count them.
  double enough = 0.5;
};

class NeuronPredictor {
 public:
  struct Parts {  // all outlive the predictor
    const ModelConfig* config = nullptr;
    const std::vector<LayerWeights>* layers = nullptr;  // norms and biases
    Backend* backend = nullptr;
    ExpertPrefetch* residency = nullptr;
  };
  // INVALID_ARGUMENT for an order without a lead of its own, UNIMPLEMENTED for a model whose router scales
  // the experts' inputs.
  static absl::StatusOr<std::unique_ptr<NeuronPredictor>> Create(const NeuronPredictorOptions& options,
                                                                 NeuronThresholds thresholds,
                                                                 const Parts& parts);

  // The router of tap.layer has run, and `ids` [tap.routing.tokens, top_k] are the experts predicted for
  // `target`, a later layer, each row's best first; -1: none. Takes the place of what was predicted before.
  // Experts that have enough neurons are kept and not predicted. False: none is left, or more rows than
  // max_rows; nothing is predicted. `only_counts`: nothing is asked for or kept, and what can be predicted
  // without is counted in this step.
  absl::StatusOr<bool> Begin(const RouterTap& tap, uint32_t target, uint32_t top_k,
                             absl::Span<const int32_t> ids, bool only_counts = false);
  // Queues those whose leads have come meanwhile, and asks for what those that are done want. Called while
  // the tapped layer is computed, and at its end.
  absl::Status Continue();
  // Whether something was queued that is not known to be done.
  bool AwaitsDevice() const { return step_ != 0 && queued_ > 0; }

  // The router of a layer has been queued: queues what Compare() looks at, if it counts in this step.
  absl::Status AskToCompare(const RouterTap& tap);
  // It has run, and what was queued before is known to be done: if the layer is the predicted one, counts.
  // Comes before the next Begin().
  absl::Status Compare(const RouterTap& tap);

  const NeuronPredictions& counters(uint32_t layer) const { return counters_[layer]; }

 private:
  struct Guess {  // one expert of the target
    uint32_t expert = 0;
    uint32_t first = 0;  // of pairs_, and rows_
    uint32_t count = 0;
    bool queued = false;
    bool done = false;
    bool compared = false;  // the true products were queued
  };

  NeuronPredictor(const NeuronPredictorOptions& options, NeuronThresholds thresholds, const Parts& parts);
  absl::Status Allocate();
  void MakeGuesses(uint32_t tokens, uint32_t top_k, absl::Span<const int32_t> ids);
  absl::Status QueueLeads();
  absl::Status TakeLeads();
  void AddWork(const Guess& guess, const WeightView& lead, const Rows& products);
  absl::Status QueueWork(const Rows& x);
  bool Counts() const { return only_counts_ || step_ % options_.count_every == 0; }
  void AskFor(const Guess& guess);
  absl::Status CompareGuess(const Guess& guess, const RouterTap& tap);
  // |factors| of a pair, which were queued into `products`; valid until the next call.
  absl::StatusOr<absl::Span<float>> Values(const Rows& products, uint32_t pair);
  absl::Span<uint64_t> mask(uint32_t pair) { return absl::MakeSpan(masks_).subspan(pair * words_, words_); }

  const NeuronPredictorOptions options_;
  const NeuronThresholds thresholds_;
  const ModelConfig& config_;
  const std::vector<LayerWeights>& layers_;
  Backend* const backend_;
  ExpertPrefetch* const residency_;

  uint64_t step_ = 0;  // of the prediction; 0: none
  bool only_counts_ = false;
  uint32_t target_ = 0;
  uint32_t tokens_ = 0;
  uint32_t width_ = 0;    // neurons of the target's experts
  uint32_t words_ = 0;    // of a mask
  uint32_t waiting_ = 0;  // guesses that are not queued
  uint32_t queued_ = 0;   // guesses that are, and not done
  Event last_queued_;
  uint64_t compares_ = 0;                    // step whose true products were queued
  Rows input_;                               // of the prediction
  Rows normed_;                              // [max_rows, hidden], NeuronInput::kNormed
  Rows products_;                            // [max_rows * largest top_k, widest expert], host-visible
  Rows true_products_;                       // the same, of what is compared with
  std::vector<LeadWork> work_;               // [most experts], of one call
  std::vector<Guess> guesses_;               // [most experts]
  std::vector<uint32_t> rows_;               // [max_rows * largest top_k], by guess
  std::vector<uint64_t> masks_;              // [the same, words]: what was predicted
  std::vector<uint64_t> union_;              // [words]
  std::vector<uint32_t> neurons_;            // [widest expert]
  std::vector<float> values_;                // [widest expert]
  std::vector<NeuronPredictions> counters_;  // by layer
};

}  // namespace sluice
