// The forward pass: embed, then for each layer route -> plan -> compute what is ready -> combine, then
// logits.
//
// It depends on no device, no encoding and no model family: operations belong to the backend, weights are
// views, and a descriptor defines each layer. While experts of the last layer travel it may draft the
// following tokens and compute their first layer's attention; a step that begins with these tokens continues
// from there. Every value it writes is a function of the rows' tokens and positions and of state that the
// step does not change (recurrent_states.h), so repeating a step after an error writes the same values.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/forward/moe_work.h"
#include "inferd/forward/part_profiler.h"
#include "inferd/forward/rope_rows.h"
#include "inferd/forward/token_draft.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "inferd/model/row_source.h"
#include "inferd/model/step_batch.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/routing.h"
#include "inferd/policy/sparsity.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// Returns OK if the forward pass implements everything in `config`; UNIMPLEMENTED naming layer and field
// otherwise, INVALID_ARGUMENT for values that contradict each other.
absl::Status CheckSupported(const ModelConfig& config);

// Output of the head for some rows. Pointers live until the next call.
struct LogitRows {
  uint32_t rows = 0;
  uint32_t k = 0;
  const float* logits = nullptr;       // [rows, vocab], if requested
  const int32_t* ids = nullptr;        // [rows, k], best first
  const float* values = nullptr;       // [rows, k], their logits
  const float* log_sum_exp = nullptr;  // [rows]
};

struct ForwardOptions {
  uint32_t max_tokens = 0;      // rows of a step
  uint32_t max_sequences = 0;   // sequences of a step
  uint32_t context = 0;         // maximum positions of a sequence
  uint32_t logit_rows = 0;      // maximum rows of one Logits() call
  uint32_t max_candidates = 1;  // largest k of Logits()
  bool look_ahead = false;      // true if the hook may request it
  bool draft_tokens = false;    // draft the following tokens; REQUIRES: CanDraftTokens(config)
};

// Number of logit rows computed at once: as many as fit 32 MiB, so that a wide vocabulary does not need
// memory for a whole prefill chunk; at least one, at most `max_tokens`.
uint32_t LogitRowsFor(uint32_t vocab, uint32_t max_tokens);

// Device bytes allocated by Forward::Create, without the KV cache.
uint64_t ActivationBytes(const ModelConfig& config, const ForwardOptions& options);
// Bytes of the choices of deferred layers, which an asynchronous device has besides.
uint64_t DeferredBytes(const ModelConfig& config, const ForwardOptions& options);

class Forward {
 public:
  struct Parts {  // all outlive the forward pass; `observer` and `cpu` may be null
    Backend* backend = nullptr;
    const DenseWeights* weights = nullptr;
    KvCache* kv = nullptr;
    RecurrentStates* states = nullptr;
    ExpertSource* experts = nullptr;
    const ResidencyView* residency = nullptr;  // residency of the same experts, for the routing policy
    RoutingPolicy* routing = nullptr;
    SparsityPolicy* sparsity = nullptr;
    LayerObserver* observer = nullptr;
    Backend* cpu = nullptr;     // computes the CPU's share of `experts` beside `backend`
    RowSource* rows = nullptr;  // of the same config; null: no layer has n-grams
  };
  static absl::StatusOr<std::unique_ptr<Forward>> Create(const ModelConfig& config,
                                                         const ForwardOptions& options, const Parts& parts);

  // Queues every layer over the batch's rows, which stores their K and V; done once Await() or Logits() has
  // returned. Sequences that meet damaged weights are marked in the batch; the others continue. After an
  // error (UNAVAILABLE: weightd is gone) the caller returns the leases with Residency::Abandon.
  absl::Status Run(StepBatch* batch);
  // Waits for the queued work.
  absl::Status Await();
  // Waits after an error of Run() until none of its queued work reads or writes any more.
  void Abandon();

  // Runs the layers from `first_layer` on: residual() holds the input rows of that layer, and the layers
  // below have stored K and V of these rows before.
  absl::Status RunFrom(uint32_t first_layer, StepBatch* batch);
  // [max_tokens, hidden]; REQUIRES: one stream (HasStreams).
  Rows residual() const { return x_; }

  const TokenDraft::Counts& drafts() const { return draft_.counts(); }
  // Cost of each part of the model over all steps; zeros on an asynchronous device.
  const PartWorks& part_works() const { return parts_.works(); }

  // Returns the best `k` ids and the log-sum-exp for some rows of the last batch; with `whole` also all
  // logits, which otherwise stay on the device. At most logit_rows rows.
  absl::StatusOr<LogitRows> Logits(absl::Span<const uint32_t> rows, uint32_t k, bool whole);

  // Multi-token prediction (mtp_drafter.h), between two batches.
  //
  // Queues to[0, count) = the hidden states behind the final norm of rows [first, first + count) of the last
  // batch.
  absl::Status QueueHidden(uint32_t first, uint32_t count, const Rows& to);
  // Queues MTP layer `index` over the rows of `batch`: their tokens follow the positions of `hidden`, of
  // which row `row_ids[i]` belongs to row i. K and V are stored at the batch's positions. The normed output
  // goes to `out`, which may be `hidden`; none: only K and V are needed. Sequences that meet damaged weights
  // are marked in the batch. Errors and their handling as Run(). REQUIRES: index < config.mtp_layers.
  absl::Status RunMtp(uint32_t index, const Rows& hidden, absl::Span<const uint32_t> row_ids, const Rows& out,
                      StepBatch* batch);
  // As Logits(), of rows of RunMtp()'s output.
  absl::StatusOr<LogitRows> MtpLogits(const Rows& from, absl::Span<const uint32_t> rows, uint32_t k,
                                      bool whole);

 private:
  struct Rope {
    RopeConfig config;
    RopeRows short_texts;                // no table: no rotation
    std::optional<RopeRows> long_texts;  // set if long sequences have their own table
  };
  // Use of the time in which experts of a layer travel and nothing else is ready.
  enum class Wait : uint8_t { kIdle, kLookAhead, kDraftTokens };
  // The sequences of a batch that share one rope table.
  struct RopeGroup {
    BufferRef table;
    absl::Span<const SequenceRows> sequences;
  };

  Forward(const ModelConfig& config, const ForwardOptions& options, const Parts& parts);
  absl::Status Allocate();
  absl::Status AllocateRows();
  absl::Status AddRope(const RopeConfig& rope);
  absl::Status ReachPositions(const StepBatch& batch);

  absl::Status BeginBatch(StepBatch* batch);
  absl::Status RunLayers(uint32_t first_layer, bool attended, StepBatch* batch);
  absl::Status Attend(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendRows(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status EmbedRows(const StepBatch& batch, const Rows& x);
  absl::Status MixStreams(const StreamWeights& weights, const Rows& x, uint32_t tokens, const Rows& factors);
  absl::Status WriteStreams(const Rows& x, uint32_t tokens, const Rows& factors, const Rows& to);
  absl::Status JoinStreams(const Rows& x, uint32_t tokens);
  absl::Status NormStreams(BufferRef weight, const Rows& x, uint32_t tokens, const Rows& to);
  absl::Status MixGatedStreams(const StreamWeights& weights, const Rows& x, uint32_t tokens,
                               const Rows& factors);
  absl::Status GatherNgrams(uint32_t layer, const StepBatch& batch);
  absl::Status AddNgrams(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendGrouped(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendLatent(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status ProjectLatent(uint32_t layer, const Rows& x, const StepBatch& batch);
  bool Chooses(const IndexConfig& index, const StepBatch& batch) const;
  ChosenBlocks ChosenOf(uint32_t layer, const StepBatch& batch) const;
  absl::Status ChooseBlocks(uint32_t layer, const StepBatch& batch);
  absl::Status WriteIndexKeys(uint32_t layer, bool chooses, const StepBatch& batch);
  absl::Status PoolIndexKeys(uint32_t layer, bool chooses, const StepBatch& batch);
  uint32_t TurnedFrom(uint32_t layer, uint32_t head_dim) const;
  absl::Status NormIndexQueries(uint32_t layer, uint32_t tokens);
  absl::Status TurnHeads(uint32_t layer, const StepBatch& batch, const Rows& x, uint32_t heads,
                         uint32_t head_dim, bool back);
  absl::Status AttendCompressed(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status ProjectCompressed(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status CompressRows(uint32_t layer, const StepBatch& batch);
  absl::Status AttendDelta(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendMamba(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendShortConv(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status AttendSelective(uint32_t layer, const Rows& x, const StepBatch& batch);
  absl::Status GateOutput(const AttentionConfig& a, uint32_t tokens, uint32_t cols, const Rows& rows);
  absl::Status ProjectOut(uint32_t layer, uint32_t tokens, const Rows& from, uint32_t cols, const Rows& x);
  std::array<RopeGroup, 2> RopeGroups(uint32_t layer, const StepBatch& batch) const;

  absl::Status MoeLayer(uint32_t layer, StepBatch* batch);
  absl::Status PrepareInputs(uint32_t layer, uint32_t tokens);
  absl::Status ComputeParallelFfn(uint32_t layer, uint32_t tokens);
  absl::Status ComputeDense(const DenseExpert& expert, const ActivationSpec& activation, uint32_t tokens,
                            const Rows& y);
  absl::Status SumExperts(uint32_t layer, uint32_t tokens, BufferRef weights);
  absl::Status AddOutputs(uint32_t layer, uint32_t tokens, BufferRef weights, const Rows& to);
  absl::Status QueueRouter(uint32_t layer, const StepBatch& batch, BufferRef ids, BufferRef weights,
                           RouterArgs* args);
  bool CanDeferRouting(uint32_t layer, const StepBatch& batch) const;
  absl::Status Gather(uint32_t layer, const StepBatch& batch);
  absl::Status RunLayerOnDevice(uint32_t layer, const StepBatch& batch);
  uint64_t DeferredOffset(uint64_t layer, uint32_t tokens) const;
  absl::Status CopyDeferred();
  absl::Status CollectDeferred();
  absl::Status QueueEarlyLeads(uint32_t layer, uint32_t tokens);
  absl::Span<const uint32_t> EarlyLeadRows();
  absl::Status DispatchExperts(uint32_t layer, StepBatch* batch);
  absl::StatusOr<Routing> Route(uint32_t layer, const StepBatch& batch);
  absl::Status QueueScores(uint32_t experts, const StepBatch& batch);
  absl::Status ScaleInputs(const MoeConfig& moe, uint32_t tokens);
  absl::Status ComputeExperts(uint32_t layer, const StepBatch& batch);
  absl::Status QueueTiles(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles);
  // The rows that a layer's experts take, and the rows of their outputs.
  Rows ExpertInputs(const MoeConfig& moe) const;
  Rows ExpertOutputs(const MoeConfig& moe) const;
  MoeExpertsArgs ExpertsArgs(uint32_t layer, uint32_t tokens, absl::Span<const ExpertWork> experts) const;
  absl::Status QueueExperts(uint32_t layer, uint32_t tokens);
  absl::Status BeginOnCpu(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles);
  absl::Status QueueLeads(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles);
  absl::Status CountActive();
  absl::Status CountSlots(uint32_t layer, const WorkPlan& plan, BufferRef active);
  Wait WaitOf(uint32_t layer) const;
  absl::Status UseWait(Wait wait, uint32_t layer, const StepBatch& batch);
  absl::Status WaitOrDraft(uint32_t layer, const StepBatch& batch);
  absl::Status CombineComputed(uint32_t layer, const StepBatch& batch);
  absl::Status LookAhead(uint32_t layer, const StepBatch& batch);
  absl::Status DraftTokens(uint32_t layer, const StepBatch& batch, absl::Span<const uint32_t> followed);
  absl::Status QueueHead(const Rows& x, const NormSpec& norm, absl::Span<const uint32_t> rows, uint32_t k);
  absl::StatusOr<LogitRows> HeadLogits(const Rows& x, const NormSpec& norm, absl::Span<const uint32_t> rows,
                                       uint32_t k, bool whole);
  absl::Status RunMtpLayer(uint32_t layer, const Rows& out, StepBatch* batch);
  // MTP layers concern no hook, and no policy changes their routing.
  LayerObserver* observer() const { return in_mtp_ ? nullptr : observer_; }
  RoutingPolicy* routing() { return in_mtp_ ? &mtp_routing_ : routing_; }
  const RoutingPolicy* routing() const { return in_mtp_ ? &mtp_routing_ : routing_; }
  absl::StatusOr<const float*> QueueLogits(uint32_t rows);
  absl::Status DropLostRows(uint32_t layer, StepBatch* batch);

  const ModelConfig& config_;
  const ForwardOptions options_;
  Backend* const backend_;
  PartProfiler parts_;  // wraps the device's queue if that is synchronous
  Queue* const queue_;  // parts_ or the device's queue
  const DenseWeights& weights_;
  const KvCache& kv_;
  const RecurrentStates& states_;
  ExpertSource* const experts_;
  RowSource* const row_source_;
  const ResidencyView* const residency_;
  RoutingPolicy* const routing_;
  SparsityPolicy* const sparsity_;
  LayerObserver* const observer_;
  TopKRouting mtp_routing_;
  bool in_mtp_ = false;  // RunMtp() is running

  std::vector<Rope> ropes_;         // distinct tables
  std::vector<uint32_t> rope_of_;   // by layer
  std::vector<int32_t> ngram_ids_;  // [T]: 0, 1, 2, ..; empty without n-grams
  WorkPlan plan_;
  LayerWork work_;
  std::unique_ptr<CpuWork> cpu_;                 // null: the device computes everything
  std::unique_ptr<RouterScores> router_scores_;  // set if the cache ranks by them
  std::vector<uint32_t> score_rows_;
  std::optional<uint32_t> uncounted_;  // plan_'s layer, if its active neurons are not counted yet
  std::vector<float> whole_logits_;    // [R, vocab], used if the host cannot read device memory
  // Deferred layers of the step: queued before the host knows their routing; empty on a synchronous device.
  std::vector<uint32_t> deferred_;
  StepBatch* batch_ = nullptr;  // the deferred layers' batch
  WorkPlan deferred_plan_;
  std::vector<int32_t>
      early_lead_ids_;  // [K], ids whose leads were queued before the host read them; empty: none
  std::vector<uint32_t> early_lead_rows_;  // [maximum experts], by demand

  // Device memory; T = max_tokens, R = logit_rows, K = maximum ranks. A buffer that no layer needs is empty.
  Rows x_;       // [T, streams * hidden] residual streams, one in most models
  Rows normed_;  // [T, hidden]
  // Attention; widths: AttentionWidths.
  Rows q_;
  Rows k_;
  Rows v_;
  Rows gate_;
  Rows q_low_;
  Rows latent_;
  Rows absorbed_;
  Rows attended_;
  Rows beta_;
  Rows decay_;
  Rows index_q_;
  Rows index_k_;
  Rows index_weights_;
  Rows index_gates_;
  Rows entry_values_;
  Rows entry_gates_;
  // int32 [T, WidestChoice]: the choice of the last layer with an indexer of its own, which those behind it
  // may share.
  BufferRef chosen_;
  // Residual streams: a block's input, and the factors by which outputs of attention and FFN are added.
  Rows block_in_;      // [T, hidden]
  Rows stream_raws_;   // [T, StreamRaws]
  Rows attn_factors_;  // [T, StreamFactors], these two
  Rows ffn_factors_;
  Rows streams_normed_;  // [T, streams * hidden], these two: of gated streams
  Rows stream_gates_;
  Rows ngram_values_;  // [T, NgramWidth]: rows of a table
  Rows ngram_terms_;   // [T * 2, streams * hidden]: what n-grams add to the streams
  // MoE layer.
  Rows fixed_;                // [T, top_k]: experts that the tokens name
  Rows scores_;               // [T, experts]
  Rows shared_scores_;        // [T, 1]
  Rows scaled_;               // [T * K, hidden], by (token, rank): inputs that the router scales
  Rows outputs_;              // [T * K, hidden], by (token, rank)
  Rows parallel_ffn_;         // [T, hidden]: output of the parallel dense FFN, or of a shared expert apart
  Rows latent_in_;            // [T, latent_width]: inputs of routed experts
  Rows latent_sums_;          // [T, latent_width]: their weighted sums
  Rows late_;                 // [T, hidden]: a sum of experts that the next layer adds
  Rows sums_;                 // [T, hidden]: output of attention or MoE layer before the add
  Rows logits_;               // [R, vocab]
  BufferRef expert_ids_;      // int32 [T, K], host-visible
  BufferRef expert_weights_;  // float32 [T, K], host-visible
  BufferRef active_;          // uint32 [T * ranks], host-visible; none without sparsity
  // The choices of a step's deferred layers: ids and then weights, both [layers][T][K]. Experts read the
  // device's, and the host has a copy at the end of the step. Empty on a synchronous device, as the next.
  BufferRef deferred_choices_;
  BufferRef deferred_staging_;  // host-visible
  BufferRef deferred_active_;   // active_ by layer
  BufferRef top_ids_;           // int32 [R, max_candidates], host-visible
  BufferRef top_values_;        // float32 [R, max_candidates], host-visible
  BufferRef log_sums_;          // float32 [R], host-visible
  // Buffers for look-ahead and draft tokens; empty if both are off.
  Rows ahead_;               // as x_: partial residual, or the draft tokens' residual after attention
  BufferRef ahead_weights_;  // float32 [T, K], host-visible: 0 where the expert is missing
  TokenDraft draft_;
  // RunMtp()'s residual and embeddings; empty without MTP layers.
  Rows mtp_x_;      // [T, hidden]
  Rows mtp_embed_;  // [T, hidden]
};

}  // namespace sluice::inferd
