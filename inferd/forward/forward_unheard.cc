// What a device that runs later is given before the host knows what its router chose: whole layers, where all
// experts are there, and leads, where a cache of neurons would look at them. The host hears afterwards.
#include <algorithm>

#include "common/status.h"
#include "inferd/forward/forward.h"

namespace sluice {

// Whether nobody needs the layer's routing before the step's end.
bool Forward::MayPass(uint32_t layer, const StepBatch& batch) const {
  return !queue_->RunsAtCall() && config_.layers[layer].moe.experts > 0 && !batch.any_lost() &&
         experts_->AllThere(layer) && routing_->KeepsResident(layer, batch) &&
         (tap_ == nullptr || tap_->MayPass(layer));
}

// Layers of a decode step that the host does not listen to go to the device together, with what comes before
// the first and behind the last; a layer that it listens to ends that. Of a prompt every step is another.
absl::Status Forward::Gather(uint32_t layer, const StepBatch& batch) {
  const bool decodes = batch.decode_rows() == batch.tokens();
  const bool unheard = config_.layers[layer].moe.experts == 0 || MayPass(layer, batch);
  return decodes && unheard ? queue_->BeginGraph() : queue_->EndGraph();
}

// The mixture of a layer whose experts are all there: router, experts and sum without a word to the host.
absl::Status Forward::MixUnheard(uint32_t layer, const StepBatch& batch) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch.tokens();
  const uint32_t ranks = RanksOf(moe);
  const bool scaled = ScalesInputs(moe);
  const uint64_t offset = uint64_t{layer} * options_.max_tokens * MostRanks(config_) * sizeof(float);
  const BufferRef weights = unheard_weights_ + offset;
  RouterArgs args;
  RETURN_IF_ERROR(QueueRouter(layer, tokens, unheard_ids_ + offset, weights, &args));
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
                             .active = sparsity_->enabled() ? unheard_active_ + offset : BufferRef{}}));
  RETURN_IF_ERROR(AddOutputs(layer, tokens, scaled ? BufferRef{} : weights, x_));
  experts_->LayerRead(layer, queue_->Record());
  unheard_.push_back(layer);
  return absl::OkStatus();
}

// They are known to have run: who was chosen is counted as if the host had seen it then.
absl::Status Forward::Hear() {
  for (const uint32_t layer : unheard_) {
    const MoeConfig& moe = config_.layers[layer].moe;
    const uint32_t ranks = RanksOf(moe);
    const uint64_t offset = uint64_t{layer} * options_.max_tokens * MostRanks(config_) * sizeof(float);
    const uint64_t bytes = uint64_t{batch_->tokens()} * ranks * sizeof(float);
    const std::byte* ids = backend_->HostRead(unheard_ids_ + offset, bytes);
    const std::byte* weights = backend_->HostRead(unheard_weights_ + offset, bytes);
    if (ids == nullptr || weights == nullptr) {
      return absl::InternalError("the router's staging memory cannot be read");
    }
    const Routing routing{batch_->tokens(), moe.top_k, ranks, reinterpret_cast<const int32_t*>(ids),
                          reinterpret_cast<const float*>(weights)};
    RETURN_IF_ERROR(heard_plan_.Build(routing, moe.experts, *batch_, ScalesInputs(moe)));
    experts_->Heard(layer, heard_plan_.demands());
    routing_->CountResident(layer, routing, *batch_);
    if (sparsity_->enabled()) {
      RETURN_IF_ERROR(CountSlots(layer, heard_plan_, unheard_active_ + offset));
    }
  }
  unheard_.clear();
  return absl::OkStatus();
}

// The leads of whatever the router chooses for a single row, where all leads are on the device.
absl::Status Forward::AskLeads(uint32_t layer, uint32_t tokens) {
  const MoeConfig& moe = config_.layers[layer].moe;
  led_.clear();
  if (!sparsity_->enabled() || tokens != 1 || ScalesInputs(moe)) {
    return absl::OkStatus();
  }
  const std::optional<LayerLeads> leads = experts_->LeadsAhead(layer, tokens);
  if (!leads.has_value()) {
    return absl::OkStatus();
  }
  led_.resize(moe.top_k);
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

// In which row the values of each demand are; a policy may have put another expert in its place.
void Forward::TellLeads() {
  if (led_.empty()) {
    return;
  }
  led_rows_.clear();
  for (const ExpertDemand& demand : plan_.demands()) {
    const auto found = std::find(led_.begin(), led_.end(), static_cast<int32_t>(demand.expert));
    led_rows_.push_back(found == led_.end() ? ExpertSource::kNoRow
                                            : static_cast<uint32_t>(found - led_.begin()));
  }
  experts_->LeadsMade(led_rows_);
}

}  // namespace sluice
