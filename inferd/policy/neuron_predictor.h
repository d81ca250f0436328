// Selects the neurons of a predicted set by their lead values.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/expert_source.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/sparsity.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// Marks the selected neurons in `chosen` (a bit per value, 64 to a word, all of them written): those of at
// least `threshold`, or the ceil(share n) largest, ties to the lower index. A NaN counts as larger than every
// number under a share and never reaches a threshold.
void ChooseByThreshold(absl::Span<const float> values, float threshold, absl::Span<uint64_t> chosen);
void ChooseByShare(absl::Span<const float> values, double share, absl::Span<uint64_t> chosen);

// Neuron predictors find the neurons that will count for experts predicted for a layer ahead. They multiply
// that layer's own lead with the current layer's state: `up_reuse` (FloE 3.3.2) with its up part,
// `gate_reuse` (CORM 4.2) with its gate part. The input is the residual under the target layer's norm, which
// finds more than the papers' x_l, the current router's input.
//
// An expert whose lead is not on the device is requested without neurons, which fetches the lead; it is
// predicted when the lead has arrived (CORM's two phases), at the next call of Continue().
//
// When the target's router has run, predicted neurons are compared with the neurons that count: for every
// (row, expert) that was both predicted and chosen, the lead's product with the true input is compared with
// the sparsity's threshold.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.

// Counts of neurons of (row, expert) pairs that were both predicted and chosen.
struct NeuronPredictions {
  uint64_t predicted = 0;
  uint64_t right = 0;   // predicted neurons that count
  uint64_t wanted = 0;  // neurons that count
};

// Share of an expert's neurons that `up_reuse` fetches: the share that the sparsity's target keeps, else
// FloE's one fifth.
double NeuronShareOf(const Policies& policies);

struct NeuronPredictorOptions {
  SparsityOrder order = SparsityOrder::kGate;  // kUp: up_reuse, kGate: gate_reuse
  std::optional<double>
      share;                  // of an expert's neurons, the largest; empty: the sparsity's threshold decides
  uint32_t max_rows = 64;     // maximum rows of a predicted step
  uint32_t count_every = 32;  // the true set is computed in one of so many steps, for counting
  uint32_t max_behind = 16;   // predicted experts of a row used while the link is behind
  // Experts that hold this share of their neurons are kept and not predicted: missing neurons are worth less
  // than the product.
  double enough = 0.5;
};

class NeuronPredictor {
 public:
  struct Parts {  // all outlive the predictor
    const ModelConfig* config = nullptr;
    const std::vector<LayerWeights>* layers = nullptr;  // norms and biases
    Backend* backend = nullptr;
    const SparsityPolicy* sparsity = nullptr;
    ExpertPrefetch* residency = nullptr;
  };
  // INVALID_ARGUMENT for an order without a lead of its own, UNIMPLEMENTED for a model whose router scales
  // the experts' inputs.
  static absl::StatusOr<std::unique_ptr<NeuronPredictor>> Create(const NeuronPredictorOptions& options,
                                                                 const Parts& parts);

  // Starts a prediction after the router of state.layer has run. `ids` [state.routing.tokens, top_k] are the
  // experts predicted for `target`, a later layer, each row's best first; -1: none. Replaces the previous
  // prediction. Experts that hold enough neurons are kept and not predicted. Returns false, and predicts
  // nothing, if no expert is left or there are more rows than max_rows. `only_counts`: nothing is requested
  // or kept, and experts whose lead is present are predicted and counted in this step.
  absl::StatusOr<bool> Begin(const RouterState& state, uint32_t target, uint32_t top_k,
                             absl::Span<const int32_t> ids, bool only_counts = false);
  // Queues experts whose leads have arrived, and requests the neurons of finished predictions. Called while
  // the observed layer is computed, and at its end.
  absl::Status Continue();
  // True if queued work is not known to be done.
  bool AwaitsDevice() const { return step_ != 0 && queued_ > 0; }

  // Queues the inputs of Compare() after the router of a layer was queued, if it counts in this step.
  absl::Status QueueCompare(const RouterState& state);
  // Counts, if the layer is the predicted one. REQUIRES: the router has run, and earlier queued work is done.
  // Called before the next Begin().
  absl::Status Compare(const RouterState& state);

  const NeuronPredictions& counters(uint32_t layer) const { return counters_[layer]; }

 private:
  struct Guess {  // one expert of the target
    uint32_t expert = 0;
    uint32_t first = 0;  // first index in pairs_ and rows_
    uint32_t count = 0;
    bool queued = false;
    bool done = false;
    bool compared = false;  // the true products were queued
  };

  NeuronPredictor(const NeuronPredictorOptions& options, const Parts& parts);
  absl::Status Allocate();
  void MakeGuesses(uint32_t tokens, uint32_t top_k, absl::Span<const int32_t> ids);
  absl::Status QueueLeads();
  absl::Status TakeLeads();
  void AddWork(const Guess& guess, const WeightView& lead, const Rows& products);
  absl::Status QueueWork(const Rows& x);
  bool Counts() const { return only_counts_ || step_ % options_.count_every == 0; }
  void Request(const Guess& guess);
  absl::Status CompareGuess(const Guess& guess, const RouterState& state);
  // Magnitudes of the products of a pair, queued into `products` before; valid until the next call.
  absl::StatusOr<absl::Span<float>> Values(const Rows& products, uint32_t pair);
  absl::Span<uint64_t> mask(uint32_t pair) { return absl::MakeSpan(masks_).subspan(pair * words_, words_); }

  const NeuronPredictorOptions options_;
  const SparsityPolicy& sparsity_;
  const ModelConfig& config_;
  const std::vector<LayerWeights>& layers_;
  Backend* const backend_;
  ExpertPrefetch* const residency_;

  uint64_t step_ = 0;  // step of the prediction; 0: none
  bool only_counts_ = false;
  uint32_t target_ = 0;
  uint32_t tokens_ = 0;
  uint32_t width_ = 0;    // neurons of each of the target's experts
  uint32_t words_ = 0;    // words of a mask
  uint32_t waiting_ = 0;  // guesses that are not queued yet
  uint32_t queued_ = 0;   // guesses queued but not done
  Event last_queued_;
  uint64_t compares_ = 0;                    // step whose true products were queued
  Rows normed_;                              // [max_rows, hidden], the prediction's input
  Rows products_;                            // [max_rows * largest top_k, widest expert], host-visible
  Rows true_products_;                       // true products to compare with, same shape
  std::vector<LeadWork> work_;               // [most experts], for one call
  std::vector<Guess> guesses_;               // [most experts]
  std::vector<uint32_t> rows_;               // [max_rows * largest top_k], grouped by guess
  std::vector<uint64_t> masks_;              // [max_rows * largest top_k, words]: predicted neurons
  std::vector<uint64_t> union_;              // [words]
  std::vector<uint32_t> neurons_;            // [widest expert]
  std::vector<float> values_;                // [widest expert]
  std::vector<NeuronPredictions> counters_;  // by layer
};

}  // namespace sluice::inferd
