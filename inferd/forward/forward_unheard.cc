// Deferred layers of an asynchronous device: work queued before the host knows the router's choice. Whole
// layers if all experts are resident, and leads if the neuron cache needs them. The host collects the routing
// later.
#include <algorithm>

#include "common/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

// True if nothing needs the layer's routing before the end of the step.
bool Forward::CanDeferRouting(uint32_t layer, const StepBatch& batch) const {
  return !queue_->RunsAtCall() && config_.layers[layer].moe.experts > 0 && !batch.any_lost() &&
         experts_->CanDeferLayer(layer) && routing_->KeepsResident(layer, batch) &&
         (observer_ == nullptr || observer_->CanDeferRouting(layer));
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
  const uint64_t offset = uint64_t{layer} * options_.max_tokens * MaxRanks(config_) * sizeof(float);
  const BufferRef weights = deferred_weights_ + offset;
  RouterArgs args;
  RETURN_IF_ERROR(QueueRouter(layer, tokens, deferred_ids_ + offset, weights, &args));
  RETURN_IF_ERROR(routing_->Choose({layer, args, residency_, &batch}, queue_));
  if (scaled) {
    RETURN_IF_ERROR(queue_->ScaleRows({normed_, weights, tokens, ranks, config_.hidden, scaled_}));
  }
  RETURN_IF_ERROR(
      queue_->RoutedExperts({.x = scaled ? scaled_ : normed_,
                             .tokens = tokens,
                             .hidden = config_.hidden,
                             .by_slot = scaled,
                             .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                             .ids = args.ids,
                             .weights = scaled ? BufferRef{} : weights,
                             .ranks = ranks,
                             .experts = work_.ByExpert(layer, *experts_),
                             .y = outputs_,
                             .active = sparsity_->enabled() ? deferred_active_ + offset : BufferRef{}}));
  RETURN_IF_ERROR(AddOutputs(layer, tokens, scaled ? BufferRef{} : weights, x_));
  experts_->LayerRead(layer, queue_->Record());
  deferred_.push_back(layer);
  return absl::OkStatus();
}

// Counts the chosen experts of the deferred layers, which are known to have run.
absl::Status Forward::CollectDeferred() {
  for (const uint32_t layer : deferred_) {
    const MoeConfig& moe = config_.layers[layer].moe;
    const uint32_t ranks = RanksOf(moe);
    const uint64_t offset = uint64_t{layer} * options_.max_tokens * MaxRanks(config_) * sizeof(float);
    const uint64_t bytes = uint64_t{batch_->tokens()} * ranks * sizeof(float);
    const std::byte* ids = backend_->HostRead(deferred_ids_ + offset, bytes);
    const std::byte* weights = backend_->HostRead(deferred_weights_ + offset, bytes);
    if (ids == nullptr || weights == nullptr) {
      return absl::InternalError("the router's staging memory cannot be read");
    }
    const Routing routing{batch_->tokens(), moe.top_k, ranks, reinterpret_cast<const int32_t*>(ids),
                          reinterpret_cast<const float*>(weights)};
    RETURN_IF_ERROR(deferred_plan_.Build(routing, moe.experts, *batch_, ScalesInputs(moe)));
    experts_->CountDeferred(layer, deferred_plan_.demands());
    routing_->CountResident(layer, routing, *batch_);
    if (sparsity_->enabled()) {
      RETURN_IF_ERROR(CountSlots(layer, deferred_plan_, deferred_active_ + offset));
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
  return queue_->RoutedLeads({.x = normed_,
                              .tokens = tokens,
                              .hidden = config_.hidden,
                              .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                              .order = sparsity_->order(),
                              .ids = expert_ids_,
                              .ranks = RanksOf(moe),
                              .top_k = moe.top_k,
                              .experts = work_.LeadsByExpert(layer, leads->leads),
                              .values = leads->values,
                              .active = leads->active});
}

// Tells the cache which row holds each demand's lead values; a policy may have replaced an expert since.
void Forward::ReportEarlyLeads() {
  if (early_lead_ids_.empty()) {
    return;
  }
  early_lead_rows_.clear();
  for (const ExpertDemand& demand : plan_.demands()) {
    const auto found =
        std::find(early_lead_ids_.begin(), early_lead_ids_.end(), static_cast<int32_t>(demand.expert));
    early_lead_rows_.push_back(found == early_lead_ids_.end()
                                   ? ExpertSource::kNoRow
                                   : static_cast<uint32_t>(found - early_lead_ids_.begin()));
  }
  experts_->LeadsMade(early_lead_rows_);
}

}  // namespace sluice::inferd
