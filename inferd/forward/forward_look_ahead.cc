// Look-ahead while experts of a layer travel: predicts the next layer's experts (importance-driven 5.2), or
// after the last layer the first layer's experts of the next token.
#include <cstring>

#include "common/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

// Chooses the use of the layer's first wait; called before any work of the layer.
Forward::Wait Forward::WaitOf(uint32_t layer) const {
  if (observer_ == nullptr) {
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
  const bool last = layer + 1 == config_.layers.size();
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
  RouterState state;
  state.layer = layer;
  state.residual = ahead_;
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
  RETURN_IF_ERROR(QueueHead(ahead_, followed, /*k=*/1));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  const std::byte* best = backend_->HostRead(top_ids_, followed.size() * sizeof(int32_t));
  if (best == nullptr) {
    return absl::InternalError("the logits' staging memory cannot be read");
  }
  draft_.Make(batch, {reinterpret_cast<const int32_t*>(best), followed.size()});
  const StepBatch& drafted = draft_.drafted();
  RETURN_IF_ERROR(queue_->Embed({drafted.ids(), weights_.embed(), config_.embedding_scale, ahead_}));
  RETURN_IF_ERROR(Attend(0, ahead_, drafted));
  RouterState state;
  state.layer = layer;
  state.residual = ahead_;
  state.routing.tokens = drafted.tokens();
  state.batch = &drafted;
  return observer_->NextTokens(state);
}

}  // namespace sluice::inferd
