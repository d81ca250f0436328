// Multi-token prediction in the forward pass: layers that draft tokens from hidden states. They have their
// own K and V in the pages of the sequence, and their experts in the cache of all layers; a step does not run
// them.

#include <utility>

#include "common/base/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

absl::Status Forward::QueueHidden(uint32_t first, uint32_t count, const Rows& to) {
  const Rows from = {x_.base + uint64_t{first} * x_.stride * sizeof(float), x_.stride};
  return queue_->Norm({from, count, config_.hidden, weights_.final_norm(), to});
}

// u = mtp_embed norm(embedding) + mtp_hidden norm(h) is the input of the decoder layer.
absl::Status Forward::RunMtp(uint32_t index, const Rows& hidden, absl::Span<const uint32_t> row_ids,
                             const Rows& out, StepBatch* batch) {
  const uint32_t layer = ModelLayers(config_) + index;
  const LayerWeights& w = weights_.layer(layer);
  const uint32_t tokens = batch->tokens();
  RETURN_IF_ERROR(BeginBatch(batch));
  RETURN_IF_ERROR(ReachPositions(*batch));
  RETURN_IF_ERROR(queue_->Embed({batch->ids(), weights_.embed(), config_.embedding_scale, mtp_embed_}));
  const MatMulPart embed[] = {{w.mtp_embed, mtp_x_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({mtp_embed_, tokens, config_.hidden, {}, w.mtp_embed_norm, embed, {}}));
  const MatMulPart from_hidden[] = {{w.mtp_hidden, mtp_x_, {}}};
  RETURN_IF_ERROR(
      queue_->MatMul({hidden, tokens, config_.hidden, row_ids, w.mtp_hidden_norm, from_hidden, mtp_x_}));
  // The layer works on x_; that of the last batch is kept.
  std::swap(x_, mtp_x_);
  in_mtp_ = true;
  absl::Status status = RunMtpLayer(layer, out, batch);
  if (status.ok()) {
    status = Await();  // before `batch` changes; also collects the counters of a deferred layer
  }
  in_mtp_ = false;
  std::swap(x_, mtp_x_);
  return status;
}

absl::Status Forward::RunMtpLayer(uint32_t layer, const Rows& out, StepBatch* batch) {
  RETURN_IF_ERROR(Attend(layer, x_, *batch));
  if (!out.base) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(MoeLayer(layer, batch));
  return queue_->Norm({x_, batch->tokens(), config_.hidden, weights_.layer(layer).mtp_norm, out});
}

absl::StatusOr<LogitRows> Forward::MtpLogits(const Rows& from, absl::Span<const uint32_t> rows, uint32_t k,
                                             bool whole) {
  return HeadLogits(from, NormSpec{}, rows, k, whole);
}

}  // namespace sluice::inferd
