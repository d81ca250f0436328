#include "inferd/forward/forward.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {

absl::Status Forward::Run(StepBatch* batch) {
  RETURN_IF_ERROR(BeginBatch(batch));
  const bool drafted = draft_.Take(*batch);
  if (drafted) {
    std::swap(x_, ahead_);
  } else {
    RETURN_IF_ERROR(Gather(0, *batch));
    RETURN_IF_ERROR(EmbedRows(*batch, x_));
  }
  return RunLayers(0, /*attended=*/drafted, batch);
}

absl::Status Forward::RunFrom(uint32_t first_layer, StepBatch* batch) {
  RETURN_IF_ERROR(BeginBatch(batch));
  draft_.Forget();
  return RunLayers(first_layer, /*attended=*/false, batch);
}

// Drops the state left by a step that ended with an error, and asks for the rows that the tokens name: the
// first layers need them soon.
absl::Status Forward::BeginBatch(StepBatch* batch) {
  uncounted_.reset();
  deferred_.clear();
  early_lead_ids_.clear();
  batch_ = batch;
  return row_source_ == nullptr ? absl::OkStatus() : row_source_->Begin(batch);
}

absl::Status Forward::Await() {
  RETURN_IF_ERROR(queue_->EndGraph());
  RETURN_IF_ERROR(CopyDeferred());
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  RETURN_IF_ERROR(CountActive());
  return CollectDeferred();
}

void Forward::Abandon() {
  if (cpu_ != nullptr) {
    cpu_->Abandon();
  }
  queue_->EndGraph().IgnoreError();  // the step's own error is reported
  queue_->Wait(queue_->Record()).IgnoreError();
}

// `attended`: x_ already holds the output of the first layer's attention.
absl::Status Forward::RunLayers(uint32_t first_layer, bool attended, StepBatch* batch) {
  RETURN_IF_ERROR(ReachPositions(*batch));
  const IndexConfig& index = config_.layers[first_layer].attention.index;
  if (index.shared && Chooses(index, *batch)) {
    return absl::UnimplementedError(
        absl::StrCat("layer ", first_layer, " takes the choice of an indexer before it, which is not run"));
  }
  for (uint32_t layer = first_layer; layer < ModelLayers(config_) && !batch->all_lost(); ++layer) {
    RETURN_IF_ERROR(Gather(layer, *batch));
    if (config_.layers[layer].parallel) {
      RETURN_IF_ERROR(PrepareInputs(layer, batch->tokens()));
    }
    if (layer > first_layer || !attended) {
      RETURN_IF_ERROR(Attend(layer, x_, *batch));
    }
    RETURN_IF_ERROR(MoeLayer(layer, batch));
    if (observer_ != nullptr) {
      RETURN_IF_ERROR(observer_->AfterLayer({layer, x_, batch}));
    }
  }
  return absl::OkStatus();
}

// x += sum over ranks of weight * expert(norm(x)): the routed experts and the common expert. Resident experts
// are computed first, the others as they arrive; the sum goes by rank, so the order of arrival does not
// change the result.
absl::Status Forward::MoeLayer(uint32_t layer, StepBatch* batch) {
  const LayerConfig& config = config_.layers[layer];
  const MoeConfig& moe = config.moe;
  const uint32_t tokens = batch->tokens();
  if (!HasFfn(config)) {
    return experts_->BeginLayer({.layer = layer});
  }
  if (!config.parallel) {
    RETURN_IF_ERROR(PrepareInputs(layer, tokens));
  }
  if (moe.dense_ffn_width > 0 || moe.shared_apart) {
    RETURN_IF_ERROR(ComputeParallelFfn(layer, tokens));
  }
  if (HasLatent(config_, moe)) {
    const MatMulPart down[] = {{weights_.layer(layer).latent_down, latent_in_, {}}};
    RETURN_IF_ERROR(queue_->MatMul({normed_, tokens, config_.hidden, {}, {}, down, {}}));
  }
  if (moe.zero_experts > 0) {
    // The outputs of experts that return their input; those of the others are written over.
    RETURN_IF_ERROR(
        queue_->ScaleRows({normed_, {}, tokens, RanksOf(moe), config_.hidden, ExpertOutputs(moe)}));
  }
  if (CanDeferRouting(layer, *batch)) {
    return RunLayerOnDevice(layer, *batch);
  }
  RETURN_IF_ERROR(DispatchExperts(layer, batch));
  RETURN_IF_ERROR(ComputeExperts(layer, *batch));
  RETURN_IF_ERROR(DropLostRows(layer, batch));
  // A router that scales the inputs has applied the weights already; a dense layer has no weights.
  const BufferRef weights = moe.experts == 0 || ScalesInputs(moe) ? BufferRef{} : expert_weights_;
  return AddOutputs(layer, tokens, weights, x_);
}

// Computes normed_ = norm(x_), the input of the layer's FFN; a layer without norms takes x_ itself. Blocks
// of several streams take their mix.
absl::Status Forward::PrepareInputs(uint32_t layer, uint32_t tokens) {
  const LayerWeights& w = weights_.layer(layer);
  const NormSpec& norm = w.ffn_norm;
  if (HasStreams(config_)) {
    RETURN_IF_ERROR(MixStreams(w.ffn_streams, x_, tokens, ffn_factors_));
  }
  const Rows& x = HasStreams(config_) ? block_in_ : x_;
  return norm.weight ? queue_->Norm({x, tokens, config_.hidden, norm, normed_})
                     : queue_->Combine({x, {}, tokens, 1, config_.hidden, {}, normed_});
}

// Computes a dense expert of normed_.
absl::Status Forward::ComputeDense(const DenseExpert& expert, const ActivationSpec& activation,
                                   uint32_t tokens, const Rows& y) {
  if (uncounted_.has_value()) {
    RETURN_IF_ERROR(Await());  // plan_ is still that of an earlier layer
  }
  plan_.BuildDense(tokens);
  ExpertWork work = WorkOfDense(expert);
  work.rows = plan_.common_rows();
  work.slots = plan_.common_slots();
  return queue_->MoeExperts({.x = normed_,
                             .tokens = tokens,
                             .hidden = config_.hidden,
                             .activation = activation,
                             .experts = absl::MakeConstSpan(&work, 1),
                             .y = y,
                             .slots = tokens,
                             .down_by_outputs = weights_.down_by_outputs()});
}

// Computes the FFN parallel to the experts: a shared expert, or a dense FFN with its norm; the experts' own
// norm of the same rows follows.
absl::Status Forward::ComputeParallelFfn(uint32_t layer, uint32_t tokens) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const LayerWeights& w = weights_.layer(layer);
  const float limit = moe.shared_limit > 0 ? moe.shared_limit : moe.activation_limit;
  RETURN_IF_ERROR(
      ComputeDense(w.beside, {moe.activation, moe.activation_alpha, limit}, tokens, parallel_ffn_));
  if (moe.shared_apart) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(queue_->Norm({parallel_ffn_, tokens, config_.hidden, w.beside_post_norm, parallel_ffn_}));
  return queue_->Norm({x_, tokens, config_.hidden, w.experts_norm, normed_});
}

// Computes sums_ = the weighted outputs, brought back from their narrower space if they have one.
absl::Status Forward::SumExperts(uint32_t layer, uint32_t tokens, BufferRef weights) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t width = HiddenOf(config_, moe);
  const bool latent = HasLatent(config_, moe);
  const Rows& sums = latent ? latent_sums_ : sums_;
  RETURN_IF_ERROR(queue_->Combine({ExpertOutputs(moe), weights, tokens, RanksOf(moe), width, {}, sums}));
  if (!latent) {
    return absl::OkStatus();
  }
  const MatMulPart up[] = {{weights_.layer(layer).latent_up, sums_, {}}};
  return queue_->MatMul({latent_sums_, tokens, width, {}, {}, up, {}});
}

// to = x + the MoE output: the weighted outputs, with the layer's norms and factor if it has any. `to` may be
// x.
absl::Status Forward::AddOutputs(uint32_t layer, uint32_t tokens, BufferRef weights, const Rows& to) {
  const LayerConfig& config = config_.layers[layer];
  const LayerWeights& w = weights_.layer(layer);
  const uint32_t hidden = config_.hidden;
  const float scale = config_.residual_scale * config.moe.output_scale;
  if (HasStreams(config_)) {
    RETURN_IF_ERROR(queue_->Combine(
        {ExpertOutputs(config.moe), weights, tokens, RanksOf(config.moe), hidden, {}, sums_, scale}));
    return WriteStreams(x_, tokens, ffn_factors_, to);
  }
  if (layer > 0 && config_.layers[layer - 1].late_experts) {
    RETURN_IF_ERROR(queue_->Combine(
        {ExpertOutputs(config.moe), weights, tokens, RanksOf(config.moe), hidden, x_, to, scale}));
    return queue_->Combine({late_, {}, tokens, 1, hidden, to, to, config_.residual_scale});
  }
  if (!NormsOutputs(config_, config)) {
    return queue_->Combine(
        {ExpertOutputs(config.moe), weights, tokens, RanksOf(config.moe), hidden, x_, to, scale});
  }
  RETURN_IF_ERROR(SumExperts(layer, tokens, weights));
  if (config.late_experts) {
    RETURN_IF_ERROR(queue_->Combine({sums_, {}, tokens, 1, hidden, {}, late_}));
    return queue_->Combine({parallel_ffn_, {}, tokens, 1, hidden, x_, to, scale});
  }
  if (config.moe.dense_ffn_width > 0) {
    RETURN_IF_ERROR(queue_->Norm({sums_, tokens, hidden, w.experts_post_norm, sums_}));
  }
  if (config.moe.dense_ffn_width > 0 || config.moe.shared_apart) {
    RETURN_IF_ERROR(queue_->Combine({parallel_ffn_, {}, tokens, 1, hidden, sums_, sums_}));
  }
  if (config.post_norms) {
    RETURN_IF_ERROR(queue_->Norm({sums_, tokens, hidden, w.ffn_post_norm, sums_}));
  }
  return queue_->Combine({sums_, {}, tokens, 1, hidden, x_, to, scale, w.layer_scale});
}

// Routes the rows to experts, and requests these experts.
absl::Status Forward::DispatchExperts(uint32_t layer, StepBatch* batch) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch->tokens();
  if (moe.experts == 0) {
    if (uncounted_.has_value()) {
      RETURN_IF_ERROR(Await());
    }
    plan_.BuildDense(tokens);
    return experts_->BeginLayer({.layer = layer});
  }
  ASSIGN_OR_RETURN(const Routing routing, Route(layer, *batch));
  RETURN_IF_ERROR(
      plan_.Build(routing, moe.experts, *batch, /*keep_zeros=*/ScalesInputs(moe), moe.zero_experts));
  RETURN_IF_ERROR(experts_->BeginLayer(
      {.layer = layer,
       .demands = plan_.demands(),
       .scores = router_scores_ == nullptr ? absl::Span<const float>() : router_scores_->Mean(),
       .lead_rows = EarlyLeadRows()}));
  return observer() == nullptr ? absl::OkStatus()
                               : observer()->AfterRouter({layer, x_, normed_, routing, batch, scores_,
                                                          this->routing()->Wanted(routing)});
}

// Copies the batch's router scores to the host, for an eviction policy that ranks by them.
absl::Status Forward::QueueScores(uint32_t experts, const StepBatch& batch) {
  score_rows_.clear();
  for (uint32_t row = 0; row < batch.tokens(); ++row) {
    if (!batch.lost(row)) {
      score_rows_.push_back(row);
    }
  }
  return router_scores_->Ask(scores_, experts, score_rows_, queue_);
}

// The only host sync of a layer: waits for the chosen experts and for every predictor input queued before
// them.
absl::StatusOr<Routing> Forward::Route(uint32_t layer, const StepBatch& batch) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch.tokens();
  const uint32_t ranks = RanksOf(moe);
  RouterArgs args;
  RETURN_IF_ERROR(QueueRouter(layer, batch, expert_ids_, expert_weights_, &args));
  const RoutingInput input{layer, args, residency_, &batch};
  RETURN_IF_ERROR(routing()->Choose(input, queue_));
  if (router_scores_ != nullptr) {
    RETURN_IF_ERROR(QueueScores(moe.experts, batch));
  }
  if (cpu_ != nullptr) {
    RETURN_IF_ERROR(cpu_->Ask(layer, ExpertInputs(moe), experts_->MayUseCpu(layer) ? tokens : 0));
  }
  if (!queue_->RunsAtCall()) {
    RETURN_IF_ERROR(QueueEarlyLeads(layer, tokens));
    Routing unknown;
    unknown.tokens = tokens;
    const RouterState state{layer, x_, normed_, unknown, &batch, scores_, {}};
    RETURN_IF_ERROR(observer() == nullptr ? absl::OkStatus() : observer()->BeforeChoice(state));
  }
  RETURN_IF_ERROR(Await());  // also collects the counters of earlier layers
  const uint64_t bytes = uint64_t{tokens} * ranks * sizeof(float);
  const std::byte* ids = backend_->HostRead(expert_ids_, bytes);
  const std::byte* weights = backend_->HostRead(expert_weights_, bytes);
  if (ids == nullptr || weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be read");
  }
  const auto* chosen = reinterpret_cast<const int32_t*>(ids);
  if (!early_lead_ids_.empty()) {
    early_lead_ids_.assign(chosen, chosen + moe.top_k);  // before the routing policy changes them
  }
  RETURN_IF_ERROR(routing()->Decide(input, queue_));
  RETURN_IF_ERROR(ScaleInputs(moe, tokens));
  if (router_scores_ != nullptr) {
    router_scores_->Take();
  }
  return Routing{tokens, moe.top_k, ranks, chosen, reinterpret_cast<const float*>(weights)};
}

// Queues the router's scores, and fills the arguments for the choice of experts.
absl::Status Forward::QueueRouter(uint32_t layer, const StepBatch& batch, BufferRef ids, BufferRef weights,
                                  RouterArgs* args) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch.tokens();
  const LayerWeights& w = weights_.layer(layer);
  const MatMulPart routers[] = {{w.router, scores_, w.router_bias}, {w.shared_router, shared_scores_, {}}};
  const auto parts = absl::MakeConstSpan(routers, moe.shared_gate ? 2 : 1);
  const bool own_norm = bool{w.router_norm.weight};
  parts_.SetProducts(StepPart::kRouter);
  const absl::Status scored =
      queue_->MatMul({own_norm ? x_ : normed_, tokens, config_.hidden, {}, w.router_norm, parts, {}});
  parts_.SetProducts(StepPart::kAttention);
  RETURN_IF_ERROR(scored);
  if (moe.router_cap > 0) {
    RETURN_IF_ERROR(queue_->SoftCap({scores_, tokens, moe.experts + moe.zero_experts, moe.router_cap}));
  }
  *args = ModelRouterArgs(moe, w);
  if (moe.token_experts) {
    RETURN_IF_ERROR(queue_->Embed({batch.ids(), w.token_experts, 1.0f, fixed_}));
    args->fixed = fixed_;
  }
  args->logits = scores_;
  args->tokens = tokens;
  args->shared = HasCommonExpert(moe);
  args->shared_logits = moe.shared_gate ? shared_scores_ : Rows{};
  args->ids = ids;
  args->weights = weights;
  return absl::OkStatus();
}

absl::Status Forward::ScaleInputs(const MoeConfig& moe, uint32_t tokens) {
  if (!ScalesInputs(moe)) {
    return absl::OkStatus();
  }
  return queue_->ScaleRows({normed_, expert_weights_, tokens, RanksOf(moe), config_.hidden, scaled_});
}

// Computes resident experts first, the others as they arrive. Queued work keeps the device busy during the
// transfers, and the first wait is used to look ahead.
absl::Status Forward::ComputeExperts(uint32_t layer, const StepBatch& batch) {
  work_.Begin(layer);
  const Wait wait = WaitOf(layer);
  bool waited = false;
  for (;;) {
    if (experts_->NextWaits()) {
      RETURN_IF_ERROR(QueueExperts(layer, batch.tokens()));
      if (!std::exchange(waited, true)) {
        RETURN_IF_ERROR(UseWait(wait, layer, batch));
      }
    }
    ASSIGN_OR_RETURN(const absl::Span<const ReadyTile> tiles, experts_->Next());
    if (tiles.empty() && work_.ready().empty()) {
      draft_.EndWait();
      if (cpu_ != nullptr && cpu_->busy()) {
        RETURN_IF_ERROR(cpu_->Finish(ExpertOutputs(config_.layers[layer].moe), active_));
        experts_->CpuFinished();
      }
      if (sparsity_->enabled() && !plan_.demands().empty()) {
        uncounted_ = layer;
      }
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(QueueTiles(layer, batch.tokens(), tiles));
  }
}

// Starts the CPU first, since a synchronous device has finished its own work when the call returns. Leads are
// queued alone and at once: the neurons they find missing travel while the ready experts are computed.
absl::Status Forward::QueueTiles(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles) {
  if (!tiles.empty() && tiles.front().lead_only) {
    return QueueLeads(layer, tokens, tiles);
  }
  RETURN_IF_ERROR(BeginOnCpu(layer, tokens, tiles));
  work_.Add(tiles);
  return QueueExperts(layer, tokens);
}

Rows Forward::ExpertInputs(const MoeConfig& moe) const {
  return HasLatent(config_, moe) ? latent_in_ : normed_;
}

Rows Forward::ExpertOutputs(const MoeConfig& moe) const { return {outputs_.base, HiddenOf(config_, moe)}; }

MoeExpertsArgs Forward::ExpertsArgs(uint32_t layer, uint32_t tokens,
                                    absl::Span<const ExpertWork> experts) const {
  const MoeConfig& moe = config_.layers[layer].moe;
  const bool scaled = ScalesInputs(moe);
  const uint32_t slots = tokens * RanksOf(moe);
  return {.x = scaled ? scaled_ : ExpertInputs(moe),
          .tokens = scaled ? slots : tokens,
          .hidden = HiddenOf(config_, moe),
          .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
          .experts = experts,
          .y = ExpertOutputs(moe),
          .slots = slots,
          .active = active_,
          .down_by_outputs = weights_.down_by_outputs()};
}

// Queues every ready work that is not queued yet.
absl::Status Forward::QueueExperts(uint32_t layer, uint32_t tokens) {
  if (work_.ready().empty()) {
    return absl::OkStatus();
  }
  const MoeExpertsArgs args = ExpertsArgs(layer, tokens, work_.ready());
  if (observer() != nullptr) {
    RETURN_IF_ERROR(observer()->BeforeExperts(layer, args));
  }
  RETURN_IF_ERROR(queue_->MoeExperts(args));
  work_.Queued();
  return absl::OkStatus();
}

// Starts the CPU's tiles; the router's choice, and with it the input scales, is known here.
absl::Status Forward::BeginOnCpu(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles) {
  const absl::Span<const ExpertWork> works = work_.OnCpu(tiles);
  if (works.empty()) {
    return absl::OkStatus();
  }
  if (cpu_ == nullptr) {
    return absl::InternalError(absl::StrCat("layer ", layer, ": experts for the CPU, and no CPU"));
  }
  const float* weights = nullptr;
  if (const MoeConfig& moe = config_.layers[layer].moe; ScalesInputs(moe)) {
    weights = reinterpret_cast<const float*>(
        backend_->HostRead(expert_weights_, uint64_t{tokens} * RanksOf(moe) * sizeof(float)));
    if (weights == nullptr) {
      return absl::InternalError("the router's staging memory cannot be read");
    }
  }
  return cpu_->Begin(ExpertsArgs(layer, tokens, works), weights);
}

// Computes leads alone: their values tell which neurons the experts need.
absl::Status Forward::QueueLeads(uint32_t layer, uint32_t tokens, absl::Span<const ReadyTile> tiles) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const bool scaled = ScalesInputs(moe);
  RETURN_IF_ERROR(
      queue_->ExpertLeads({.x = scaled ? scaled_ : ExpertInputs(moe),
                           .tokens = scaled ? tokens * RanksOf(moe) : tokens,
                           .hidden = HiddenOf(config_, moe),
                           .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                           .order = sparsity_->order(),
                           .experts = work_.LeadsOf(tiles)}));
  return experts_->LeadsQueued();
}

// Counts the active neurons of plan_'s layer, which is known to have run.
absl::Status Forward::CountActive() {
  if (!uncounted_.has_value()) {
    return absl::OkStatus();
  }
  const uint32_t layer = *std::exchange(uncounted_, std::nullopt);
  return CountSlots(layer, plan_, active_);
}

absl::Status Forward::CountSlots(uint32_t layer, const WorkPlan& plan, BufferRef active) {
  uint64_t pairs = 0;
  uint64_t kept = 0;
  for (uint32_t demand = 0; demand < plan.demands().size(); ++demand) {
    for (const uint32_t slot : plan.slots(demand)) {
      const std::byte* count =
          backend_->HostRead(active + uint64_t{slot} * sizeof(uint32_t), sizeof(uint32_t));
      if (count == nullptr) {
        return absl::InternalError("the experts' neuron counts cannot be read");
      }
      uint32_t neurons = 0;
      std::memcpy(&neurons, count, sizeof(neurons));
      kept += neurons;
      ++pairs;
    }
  }
  sparsity_->Count(layer, pairs * config_.layers[layer].moe.expert_width, kept);
  return absl::OkStatus();
}

// Excludes rows of sequences that met damaged weights from here on: their results were never computed.
absl::Status Forward::DropLostRows(uint32_t layer, StepBatch* batch) {
  const uint32_t tokens = batch->tokens();
  const uint32_t ranks = RanksOf(config_.layers[layer].moe);
  for (const FailedDemand& failed : experts_->failed()) {
    for (const uint32_t row : plan_.rows(failed.demand)) {
      batch->Fail(batch->sequence_of(row), failed.extent);
    }
  }
  const bool weighs = !ScalesInputs(config_.layers[layer].moe);  // else nothing reads the weights after this
  if (!batch->any_lost() || !weighs) {
    return absl::OkStatus();
  }
  std::byte* bytes = backend_->HostWrite(expert_weights_, uint64_t{tokens} * ranks * sizeof(float));
  if (bytes == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  float* weights = reinterpret_cast<float*>(bytes);
  for (uint32_t row = 0; row < tokens; ++row) {
    if (batch->lost(row)) {
      std::fill_n(weights + uint64_t{row} * ranks, ranks, 0.0f);
    }
  }
  return absl::OkStatus();
}

// Queues the logits of some rows of `x`, and their best `k` and log-sum-exps into staging memory.
absl::Status Forward::QueueHead(const Rows& x, const NormSpec& norm, absl::Span<const uint32_t> rows,
                                uint32_t k) {
  const uint32_t count = static_cast<uint32_t>(rows.size());
  const MatMulPart head[] = {{weights_.head(), logits_, weights_.head_bias(), config_.logit_scale}};
  if (HasStreams(config_)) {
    RETURN_IF_ERROR(JoinStreams(x, rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1));
  }
  parts_.SetProducts(StepPart::kHead);
  const Rows& from = HasStreams(config_) ? block_in_ : x;
  const absl::Status made = queue_->MatMul({from, count, config_.hidden, rows, norm, head, {}});
  parts_.SetProducts(StepPart::kAttention);
  RETURN_IF_ERROR(made);
  if (config_.logit_cap > 0) {
    RETURN_IF_ERROR(queue_->SoftCap({logits_, count, config_.vocab, config_.logit_cap}));
  }
  return queue_->TopLogits({logits_, count, config_.vocab, k, top_ids_, top_values_, log_sums_});
}

// Returns the host address of the logits, valid once the queued work has run.
absl::StatusOr<const float*> Forward::QueueLogits(uint32_t rows) {
  const uint64_t bytes = uint64_t{rows} * config_.vocab * sizeof(float);
  if (const std::byte* there = backend_->HostRead(logits_.base, bytes); there != nullptr) {
    return reinterpret_cast<const float*>(there);
  }
  RETURN_IF_ERROR(queue_->Download(logits_.base, bytes, whole_logits_.data()));
  return whole_logits_.data();
}

absl::StatusOr<LogitRows> Forward::Logits(absl::Span<const uint32_t> rows, uint32_t k, bool whole) {
  return HeadLogits(x_, weights_.final_norm(), rows, k, whole);
}

// Reads the step's results: the only read at its end.
absl::StatusOr<LogitRows> Forward::HeadLogits(const Rows& x, const NormSpec& norm,
                                              absl::Span<const uint32_t> rows, uint32_t k, bool whole) {
  const uint32_t count = static_cast<uint32_t>(rows.size());
  if (count > options_.logit_rows || k > options_.max_candidates) {
    return absl::InternalError(absl::StrCat("logits of ", count, " rows with ", k, " candidates; limits are ",
                                            options_.logit_rows, " and ", options_.max_candidates));
  }
  RETURN_IF_ERROR(QueueHead(x, norm, rows, k));
  LogitRows result;
  if (whole) {
    ASSIGN_OR_RETURN(result.logits, QueueLogits(count));
  }
  RETURN_IF_ERROR(Await());
  const auto read = [this](BufferRef ref, uint64_t values) { return backend_->HostRead(ref, values * 4); };
  result.rows = count;
  result.k = k;
  result.ids = reinterpret_cast<const int32_t*>(read(top_ids_, uint64_t{count} * k));
  result.values = reinterpret_cast<const float*>(read(top_values_, uint64_t{count} * k));
  result.log_sum_exp = reinterpret_cast<const float*>(read(log_sums_, count));
  if (result.ids == nullptr || result.values == nullptr || result.log_sum_exp == nullptr) {
    return absl::InternalError("the logits' staging memory cannot be read");
  }
  return result;
}

// Deferred layers of an asynchronous device: work queued before the host knows the router's choice. Whole
// layers if all experts are resident, and leads if the neuron cache needs them. The host collects the routing
// later.

// True if nothing needs the layer's routing before the end of the step.
bool Forward::CanDeferRouting(uint32_t layer, const StepBatch& batch) const {
  return !queue_->RunsAtCall() && config_.layers[layer].moe.experts > 0 && !batch.any_lost() &&
         experts_->CanDeferLayer(layer) && routing()->KeepsResident(layer, batch) &&
         (observer() == nullptr || observer()->CanDeferRouting(layer));
}

// Gathers consecutive deferred layers of a decode step into one device graph, with the work before the first
// and after the last; a layer that needs the host ends the graph. Prefill steps differ from each other and
// get none.
absl::Status Forward::Gather(uint32_t layer, const StepBatch& batch) {
  const bool decodes = batch.decode_rows() == batch.tokens();
  const bool deferrable = config_.layers[layer].moe.experts == 0 || CanDeferRouting(layer, batch);
  return decodes && deferrable ? queue_->BeginGraph() : queue_->EndGraph();
}

// Computes an MoE layer whose experts are all resident: router, experts and sum without a host sync.
absl::Status Forward::RunLayerOnDevice(uint32_t layer, const StepBatch& batch) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch.tokens();
  const uint32_t ranks = RanksOf(moe);
  const bool scaled = ScalesInputs(moe);
  const uint64_t offset = DeferredOffset(layer, tokens);
  const BufferRef ids = deferred_choices_ + offset;
  const BufferRef weights = ids + DeferredOffset(config_.layers.size(), tokens);
  RouterArgs args;
  RETURN_IF_ERROR(QueueRouter(layer, batch, ids, weights, &args));
  RETURN_IF_ERROR(routing()->Choose({layer, args, residency_, &batch}, queue_));
  if (scaled) {
    RETURN_IF_ERROR(queue_->ScaleRows({normed_, weights, tokens, ranks, config_.hidden, scaled_}));
  }
  const LayerWork::WholeLayer whole = work_.ByExpert(layer, *experts_);
  RETURN_IF_ERROR(
      queue_->RoutedExperts({.x = scaled ? scaled_ : ExpertInputs(moe),
                             .tokens = tokens,
                             .hidden = HiddenOf(config_, moe),
                             .by_slot = scaled,
                             .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                             .ids = args.ids,
                             .weights = scaled ? BufferRef{} : weights,
                             .ranks = ranks,
                             .experts = whole.experts,
                             .experts_number = whole.number,
                             .y = ExpertOutputs(moe),
                             .active = sparsity_->enabled() ? deferred_active_ + offset : BufferRef{},
                             .down_by_outputs = weights_.down_by_outputs()}));
  RETURN_IF_ERROR(AddOutputs(layer, tokens, scaled ? BufferRef{} : weights, x_));
  experts_->LayerRead(layer, queue_->Record());
  deferred_.push_back(layer);
  return absl::OkStatus();
}

// The place of a deferred layer's choices among those of a step of so many tokens, in bytes.
uint64_t Forward::DeferredOffset(uint64_t layer, uint32_t tokens) const {
  return layer * tokens * MaxRanks(config_) * sizeof(float);
}

// Queues the copy of all choices of the step for CollectDeferred().
absl::Status Forward::CopyDeferred() {
  if (deferred_.empty()) {
    return absl::OkStatus();
  }
  const uint64_t bytes = 2 * DeferredOffset(config_.layers.size(), batch_->tokens());
  std::byte* const staging = backend_->HostWrite(deferred_staging_, bytes);
  if (staging == nullptr) {
    return absl::InternalError("the staging memory of the routers' choices cannot be written");
  }
  return queue_->Download(deferred_choices_, bytes, staging);
}

// Counts the chosen experts of the deferred layers, which are known to have run.
absl::Status Forward::CollectDeferred() {
  for (const uint32_t layer : deferred_) {
    const MoeConfig& moe = config_.layers[layer].moe;
    const uint32_t ranks = RanksOf(moe);
    const uint32_t tokens = batch_->tokens();
    const BufferRef choices = deferred_staging_ + DeferredOffset(layer, tokens);
    const uint64_t bytes = uint64_t{tokens} * ranks * sizeof(float);
    const std::byte* ids = backend_->HostRead(choices, bytes);
    const std::byte* weights =
        backend_->HostRead(choices + DeferredOffset(config_.layers.size(), tokens), bytes);
    if (ids == nullptr || weights == nullptr) {
      return absl::InternalError("the router's staging memory cannot be read");
    }
    const Routing routing{batch_->tokens(), moe.top_k, ranks, reinterpret_cast<const int32_t*>(ids),
                          reinterpret_cast<const float*>(weights)};
    RETURN_IF_ERROR(deferred_plan_.Build(routing, moe.experts, *batch_, ScalesInputs(moe), moe.zero_experts));
    experts_->CountDeferred(layer, deferred_plan_.demands());
    this->routing()->CountResident(layer, routing, *batch_);
    if (sparsity_->enabled()) {
      RETURN_IF_ERROR(CountSlots(layer, deferred_plan_, deferred_active_ + DeferredOffset(layer, tokens)));
    }
  }
  deferred_.clear();
  return absl::OkStatus();
}

// Queues the leads of a single row's chosen experts before the host knows them, if all leads are on the
// device.
absl::Status Forward::QueueEarlyLeads(uint32_t layer, uint32_t tokens) {
  const MoeConfig& moe = config_.layers[layer].moe;
  early_lead_ids_.clear();
  if (!sparsity_->enabled() || tokens != 1 || ScalesInputs(moe)) {
    return absl::OkStatus();
  }
  const std::optional<LayerLeads> leads = experts_->LeadsAhead(layer, tokens);
  if (!leads.has_value()) {
    return absl::OkStatus();
  }
  early_lead_ids_.resize(moe.top_k);
  return queue_->RoutedLeads({.x = ExpertInputs(moe),
                              .tokens = tokens,
                              .hidden = HiddenOf(config_, moe),
                              .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                              .order = sparsity_->order(),
                              .ids = expert_ids_,
                              .ranks = RanksOf(moe),
                              .top_k = moe.top_k,
                              .experts = work_.LeadsByExpert(layer, leads->leads),
                              .values = leads->values,
                              .active = leads->active});
}

// Returns the row that holds each demand's lead values; a policy may have replaced an expert since. Empty: no
// lead was queued.
absl::Span<const uint32_t> Forward::EarlyLeadRows() {
  early_lead_rows_.clear();
  if (early_lead_ids_.empty()) {
    return early_lead_rows_;
  }
  for (const ExpertDemand& demand : plan_.demands()) {
    const auto found =
        std::find(early_lead_ids_.begin(), early_lead_ids_.end(), static_cast<int32_t>(demand.expert));
    early_lead_rows_.push_back(found == early_lead_ids_.end()
                                   ? ExpertSource::kNoRow
                                   : static_cast<uint32_t>(found - early_lead_ids_.begin()));
  }
  return early_lead_rows_;
}

// Look-ahead while experts of a layer travel: predicts the next layer's experts (importance-driven 5.2), or
// after the last layer the first layer's experts of the next token.

// Chooses the use of the layer's first wait; called before any work of the layer.
Forward::Wait Forward::WaitOf(uint32_t layer) const {
  if (observer() == nullptr) {
    return Wait::kIdle;
  }
  if (observer_->WantsLookAhead(layer)) {
    return Wait::kLookAhead;
  }
  return options_.draft_tokens ? Wait::kDraftTokens : Wait::kIdle;
}

// Uses the wait; all ready work of the layer is queued.
absl::Status Forward::UseWait(Wait wait, uint32_t layer, const StepBatch& batch) {
  if (wait == Wait::kIdle || work_.missing() == 0) {
    return absl::OkStatus();
  }
  return wait == Wait::kLookAhead ? LookAhead(layer, batch) : WaitOrDraft(layer, batch);
}

// Drafts tokens in the last layer if that is worth its time. Layers without a draft measure the wait for
// experts.
absl::Status Forward::WaitOrDraft(uint32_t layer, const StepBatch& batch) {
  const absl::Span<const uint32_t> followed = draft_.FindDraftRows(batch);
  if (followed.empty()) {
    return absl::OkStatus();
  }
  const Event began = queue_->Record();
  const bool last = layer + 1 == ModelLayers(config_);
  if (!last || !draft_.Pays(work_.missing()) || !observer_->WantsNextTokens()) {
    draft_.BeginWait(work_.missing());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(DraftTokens(layer, batch, followed));
  draft_.Making(began, queue_->Record());
  return absl::OkStatus();
}

// Computes ahead_ = the residual after `layer` without the experts that are still missing.
absl::Status Forward::CombineComputed(uint32_t layer, const StepBatch& batch) {
  const uint32_t tokens = batch.tokens();
  const uint32_t ranks = RanksOf(config_.layers[layer].moe);
  const uint64_t bytes = uint64_t{tokens} * ranks * sizeof(float);
  const std::byte* weights = backend_->HostRead(expert_weights_, bytes);
  std::byte* known = backend_->HostWrite(ahead_weights_, bytes);
  if (weights == nullptr || known == nullptr) {
    return absl::InternalError("the router's staging memory cannot be read or written");
  }
  std::memcpy(known, weights, bytes);
  float* known_weights = reinterpret_cast<float*>(known);
  for (uint32_t demand = 0; demand < plan_.demands().size(); ++demand) {
    for (const uint32_t slot : work_.IsWhole(demand) ? absl::Span<const uint32_t>() : plan_.slots(demand)) {
      known_weights[slot] = 0.0f;
    }
  }
  return AddOutputs(layer, tokens, ahead_weights_, ahead_);
}

// Runs that residual through the next layer's attention. The predicted K and V are written to the positions
// where the same step later writes the exact ones, before any reader, and a recurrent state is replaced the
// same way: nothing of the prediction stays.
absl::Status Forward::LookAhead(uint32_t layer, const StepBatch& batch) {
  RETURN_IF_ERROR(CombineComputed(layer, batch));
  RETURN_IF_ERROR(Attend(layer + 1, ahead_, batch));
  if (HasStreams(config_)) {
    // The factors of this layer's FFN are needed again, those of the next attention are not.
    RETURN_IF_ERROR(MixStreams(weights_.layer(layer + 1).ffn_streams, ahead_, batch.tokens(), attn_factors_));
  }
  RouterState state;
  state.layer = layer;
  state.residual = HasStreams(config_) ? block_in_ : ahead_;
  state.routing.tokens = batch.tokens();
  state.batch = &batch;
  return observer_->LookAhead(state);
}

// The draft tokens are the head's choice from that residual. Their first-layer K and V are written to the
// positions where the next step writes those of the real tokens, before any reader. If the next step begins
// with exactly these tokens, K, V and the attention output are the same to the bit and are not computed
// again.
absl::Status Forward::DraftTokens(uint32_t layer, const StepBatch& batch,
                                  absl::Span<const uint32_t> followed) {
  RETURN_IF_ERROR(CombineComputed(layer, batch));
  RETURN_IF_ERROR(QueueHead(ahead_, weights_.final_norm(), followed, /*k=*/1));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  const std::byte* best = backend_->HostRead(top_ids_, followed.size() * sizeof(int32_t));
  if (best == nullptr) {
    return absl::InternalError("the logits' staging memory cannot be read");
  }
  draft_.Make(batch, {reinterpret_cast<const int32_t*>(best), followed.size()});
  const StepBatch& drafted = draft_.drafted();
  RETURN_IF_ERROR(EmbedRows(drafted, ahead_));
  RETURN_IF_ERROR(Attend(0, ahead_, drafted));
  RouterState state;
  state.layer = layer;
  state.residual = ahead_;
  state.routing.tokens = drafted.tokens();
  state.batch = &drafted;
  return observer_->NextTokens(state);
}

}  // namespace sluice::inferd
