// A router's scores of all experts, copied to the host: p, the softmax over a layer's routed experts, which
// policies compare, and weights of a choice by the model's own rule.
//
// Thread safety: thread-compatible; belongs to the engine thread. Does not allocate after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/step_batch.h"
#include "inferd/policy/policies.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class RouterScores {
 public:
  RouterScores(uint32_t most_tokens, uint32_t most_experts);

  // Queues a copy of the rows `rows` of a router's logits [tokens, experts]; Take() computes p from them,
  // once the copy is done.
  absl::Status Ask(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue);
  void Take();
  // Ask(), a wait, and Take().
  absl::Status Read(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue);

  uint32_t rows() const { return rows_; }
  // [rows, experts], packed.
  const float* data() const { return scores_.data(); }
  const float* row(uint32_t i) const { return scores_.data() + uint64_t{i} * experts_; }
  // Mean over the rows, [experts].
  absl::Span<const float> Mean();

 private:
  uint32_t rows_ = 0;
  uint32_t experts_ = 0;
  std::vector<float> scores_;
  std::vector<float> mean_;
};

// True if a router's weights are its softmax scores; policies that choose other experts rely on it.
bool WeighsBySoftmax(RouterKind kind);

// Weights of `ids` (top_k of them) by the model's rule from their own p. REQUIRES:
// WeighsBySoftmax(args.kind).
void WeighBySoftmax(const RouterArgs& args, const float* scores, const int32_t* ids, float* weights);

// The importance-driven exchange of low-score experts, which CacheAwareRouting applies to a
// router's result.
//
// Thread safety: ExpertExchange is thread-compatible and does not allocate after construction.

// A batch of tokens at one layer's router.
struct ExchangeBatch {
  uint32_t tokens = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  const float* scores = nullptr;  // p [tokens, experts]
  int32_t* ids = nullptr;         // [tokens, top_k], distinct, best first
};

// importance-driven Algorithm 1, read with its text. With beta the (K+1)-th highest p of a token, experts
// above (1 + alpha) beta are needed; experts needed by one token of the batch become resident for all of
// them. The other experts of a token's top K, neither resident nor needed, are exchanged, the weakest first,
// for the best resident or needed experts outside of its top K with p in [(1 - alpha) beta, beta]. With equal
// p, the expert used by more tokens of the batch goes first, then the lower id.
class ExpertExchange {
 public:
  ExpertExchange(uint32_t most_tokens, uint32_t most_experts);

  // Exchanges ids in place, best first again; returns the number of exchanges. `resident`: predicate over the
  // layer's experts.
  uint32_t Choose(const ExchangeBatch& batch, double alpha, absl::FunctionRef<bool(uint32_t)> resident);

  // Number of pairs (token, rank) with p <= (1 + alpha) beta in the last call.
  uint32_t low_scores() const { return low_scores_; }

 private:
  uint32_t ChooseToken(const ExchangeBatch& batch, uint32_t token, double alpha);
  double Beta(const float* scores, const ExchangeBatch& batch);

  std::vector<float> sorted_;      // [experts]
  std::vector<double> beta_;       // [tokens]
  std::vector<uint32_t> users_;    // [experts]: number of tokens whose top K holds it
  std::vector<bool> there_;        // [experts]: resident or needed by the batch
  std::vector<uint32_t> leaving_;  // ranks of a token, weakest first
  std::vector<uint32_t> joining_;  // experts, best first
  uint32_t low_scores_ = 0;
};

// Routing policies: router scores and the residency view become the experts of each token.
//
// Thread safety: thread-compatible; belongs to the engine thread.

// The arguments defined by a layer's configuration and dense tensors: all except tokens, scores, result
// buffers and the rank of the shared expert.
RouterArgs ModelRouterArgs(const MoeConfig& moe, const LayerWeights& weights);

struct RoutingInput {
  uint32_t layer = 0;
  // Arguments of the model's own choice, ready to run: ranks [tokens, top_k], and one of the shared expert if
  // there is one; ids and weights host-visible. A policy may leave a routed rank out by a weight of 0.
  RouterArgs model;
  const ResidencyView* residency = nullptr;
  const StepBatch* batch = nullptr;
};

// Changes of a routing policy to decode rows since its construction, of a layer or of all.
struct RoutingCounters {
  uint64_t pairs = 0;      // (row, routed rank) that the model chose
  uint64_t dropped = 0;    // pairs left out
  uint64_t exchanged = 0;  // pairs with another expert instead
  uint64_t single = 0;     // (row, layer) that use one expert of several
  uint64_t rows = 0;       // (row, layer)

  void Add(const RoutingCounters& other) {
    pairs += other.pairs;
    dropped += other.dropped;
    exchanged += other.exchanged;
    single += other.single;
    rows += other.rows;
  }
};

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // Queues the kernels that compute ids and weights, and the inputs of Decide(): the caller waits once for
  // both.
  virtual absl::Status Choose(const RoutingInput& input, Queue* queue) = 0;
  // Changes ids and weights to their final values. REQUIRES: the queued work of Choose() is done.
  virtual absl::Status Decide(const RoutingInput& /*input*/, Queue* /*queue*/) { return absl::OkStatus(); }
  // True if Decide() would change nothing in `layer`, all of whose experts are resident: the host then need
  // not wait, and receives the choice later.
  virtual bool KeepsResident(uint32_t /*layer*/, const StepBatch& /*batch*/) const { return false; }
  virtual void CountResident(uint32_t /*layer*/, const Routing& /*routing*/, const StepBatch& /*batch*/) {}
  // Counters by layer; empty for a policy that leaves the model's choice unchanged.
  virtual absl::Span<const RoutingCounters> layer_counters() const { return {}; }
  RoutingCounters counters() const;  // sum over all layers
  // The choice of the last Decide() before missing experts were replaced or left out. Valid until the next
  // call.
  virtual Routing Wanted(const Routing& computed) const { return computed; }
  // By layer: experts chosen by rows of a step and then computed for none of them; empty: never any.
  virtual absl::Span<const uint64_t> skipped() const { return {}; }
};

// The model's own choice.
class TopKRouting final : public RoutingPolicy {
 public:
  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
  bool KeepsResident(uint32_t, const StepBatch&) const override { return true; }
};

// AdapMoE 4.2 on decode rows: fewer experts where (1 - alpha)^2 S_l <= T. The device applies it if all rows
// of a step are decode rows, else the host.
class SensitivityRouting final : public RoutingPolicy {
 public:
  // `sensitivities`: S_l by layer.
  SensitivityRouting(std::vector<double> sensitivities, double threshold, Backend* backend)
      : sensitivities_(std::move(sensitivities)),
        threshold_(threshold),
        backend_(backend),
        counters_(sensitivities_.size()) {}
  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
  absl::Status Decide(const RoutingInput& input, Queue* queue) override;
  bool KeepsResident(uint32_t, const StepBatch& batch) const override {
    return batch.decode_rows() == 0 || batch.decode_rows() == batch.tokens();
  }
  void CountResident(uint32_t layer, const Routing& routing, const StepBatch& batch) override;
  absl::Span<const RoutingCounters> layer_counters() const override { return counters_; }

  double threshold() const { return threshold_; }

 private:
  static bool CutsOnDevice(const RoutingInput& input);
  void Count(uint32_t layer, absl::Span<const float> weights);

  const std::vector<double> sensitivities_;
  const double threshold_;
  Backend* const backend_;
  std::vector<RoutingCounters> counters_;  // by layer
};

// importance-driven Algorithm 1 over the decode rows of a batch.
class CacheAwareRouting final : public RoutingPolicy {
 public:
  CacheAwareRouting(double alpha, uint32_t layers, uint32_t max_tokens, uint32_t most_experts,
                    uint32_t largest_top_k, Backend* backend);
  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
  absl::Status Decide(const RoutingInput& input, Queue* queue) override;
  // All experts are resident, so no exchange is better.
  bool KeepsResident(uint32_t, const StepBatch&) const override { return true; }
  void CountResident(uint32_t layer, const Routing& routing, const StepBatch& batch) override {
    counters_[layer].rows += batch.decode_rows();
    counters_[layer].pairs += uint64_t{batch.decode_rows()} * routing.top_k;
  }
  absl::Span<const RoutingCounters> layer_counters() const override { return counters_; }

 private:
  const double alpha_;
  Backend* const backend_;
  RouterScores scores_;
  ExpertExchange exchange_;
  std::vector<uint32_t> rows_;             // decode rows
  std::vector<int32_t> ids_;               // [decode rows, top_k]
  std::vector<RoutingCounters> counters_;  // by layer
};

struct RoutingSetup {
  const Policies* policies = nullptr;
  const ModelConfig* config = nullptr;
  Backend* backend = nullptr;
  uint32_t max_tokens = 0;
  std::string profile_dir;    // read by `sensitivity` only
  std::string source_digest;  // of the pack
};

// NOT_FOUND naming the command that makes a profile, FAILED_PRECONDITION if it is another model's;
// UNIMPLEMENTED for a router whose weights the policy cannot compute.
absl::StatusOr<std::unique_ptr<RoutingPolicy>> MakeRouting(const RoutingSetup& setup);

// S_l by layer and T, from the profile and the config.
struct GatingRule {
  std::vector<double> sensitivities;
  double threshold = 0;
};
absl::StatusOr<GatingRule> ResolveGating(const SensitivityConfig& config, const ModelConfig& model,
                                         const std::string& profile_dir, const std::string& source_digest);

}  // namespace sluice::inferd
