#include "inferd/dense_weights.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/error_detail.h"
#include "common/pack/dense_names.h"
#include "common/pack/row_layout.h"
#include "common/status.h"

namespace sluice {

DenseWeights::DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments)
    : client_(client),
      fetches_(fetches),
      segments_(segments),
      pack_(client->pack()),
      extents_(pack_.dense_extent_count(), Extent::kAbsent),
      leases_(pack_.dense_extent_count()),
      layers_(pack_.config().layers.size()) {}

absl::StatusOr<std::unique_ptr<DenseWeights>> DenseWeights::Create(WeightClient* client, FetchQueue* fetches,
                                                                   const SegmentBuffers* segments) {
  std::unique_ptr<DenseWeights> weights(new DenseWeights(client, fetches, segments));
  RETURN_IF_ERROR(Annotate(weights->FindTensors(), absl::StrCat("pack ", client->pack().dir())));
  return weights;
}

absl::StatusOr<const DenseTensor*> DenseWeights::Find(std::string_view name, uint32_t rows, uint32_t cols) {
  const DenseTensor* tensor = pack_.FindDense(name);
  if (tensor == nullptr) {
    return absl::DataLossError(absl::StrCat("tensor ", std::string(name), " is missing"));
  }
  if (tensor->rows != rows || tensor->cols != cols) {
    return absl::DataLossError(absl::StrCat("tensor ", std::string(name), " is [", tensor->rows, ", ",
                                            tensor->cols, "], the configuration says [", rows, ", ", cols,
                                            "]"));
  }
  bytes_per_step_ += uint64_t{rows} * tensor->stride;
  return tensor;
}

absl::Status DenseWeights::FindMatrix(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view) {
  ASSIGN_OR_RETURN(const DenseTensor* tensor, Find(name, rows, cols));
  *view = {tensor->encoding, {}, tensor->stride, rows, cols};
  placed_.push_back({tensor, &view->base});
  return absl::OkStatus();
}

absl::Status DenseWeights::FindVector(std::string_view name, uint32_t cols, BufferRef* place) {
  ASSIGN_OR_RETURN(const DenseTensor* tensor, Find(name, 1, cols));
  if (tensor->encoding.encoding != Encoding::kF32) {
    return absl::DataLossError(absl::StrCat("tensor ", std::string(name), " is a vector but not f32"));
  }
  placed_.push_back({tensor, place});
  return absl::OkStatus();
}

absl::Status DenseWeights::FindTensors() {
  const ModelConfig& config = pack_.config();
  RETURN_IF_ERROR(FindMatrix(dense::kEmbed, config.vocab, config.hidden, &embed_));
  if (config.tied_embeddings) {
    RETURN_IF_ERROR(FindMatrix(dense::kEmbed, config.vocab, config.hidden, &head_));
  } else {
    RETURN_IF_ERROR(FindMatrix(dense::kHead, config.vocab, config.hidden, &head_));
  }
  bytes_per_step_ -= config.vocab * embed_.stride;  // of the embedding a step reads its tokens' rows only
  final_norm_.epsilon = config.norm_epsilon;
  RETURN_IF_ERROR(FindVector(dense::kFinalNorm, config.hidden, &final_norm_.weight));
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    RETURN_IF_ERROR(FindLayer(layer));
  }
  return absl::OkStatus();
}

absl::Status DenseWeights::FindLayer(uint32_t layer) {
  const ModelConfig& config = pack_.config();
  const AttentionConfig& attention = config.layers[layer].attention;
  const uint32_t hidden = config.hidden;
  const uint32_t q_rows = attention.heads * attention.head_dim;
  const uint32_t kv_rows = attention.kv_heads * attention.head_dim;
  const auto name = [layer](std::string_view tensor) { return dense::LayerName(layer, tensor); };
  LayerWeights& w = layers_[layer];
  w.attn_norm.epsilon = w.ffn_norm.epsilon = config.norm_epsilon;
  w.q_norm.epsilon = w.k_norm.epsilon = config.norm_epsilon;
  RETURN_IF_ERROR(FindVector(name(dense::kAttnNorm), hidden, &w.attn_norm.weight));
  RETURN_IF_ERROR(FindMatrix(name(dense::kQ), q_rows, hidden, &w.q));
  RETURN_IF_ERROR(FindMatrix(name(dense::kK), kv_rows, hidden, &w.k));
  RETURN_IF_ERROR(FindMatrix(name(dense::kV), kv_rows, hidden, &w.v));
  RETURN_IF_ERROR(FindMatrix(name(dense::kO), hidden, q_rows, &w.o));
  if (attention.qkv_bias) {
    RETURN_IF_ERROR(FindVector(name(dense::kQBias), q_rows, &w.q_bias));
    RETURN_IF_ERROR(FindVector(name(dense::kKBias), kv_rows, &w.k_bias));
    RETURN_IF_ERROR(FindVector(name(dense::kVBias), kv_rows, &w.v_bias));
  }
  if (attention.output_bias) {
    RETURN_IF_ERROR(FindVector(name(dense::kOBias), hidden, &w.o_bias));
  }
  if (attention.qk_norm != QkNorm::kNone) {
    RETURN_IF_ERROR(FindVector(name(dense::kQNorm), attention.head_dim, &w.q_norm.weight));
    RETURN_IF_ERROR(FindVector(name(dense::kKNorm), attention.head_dim, &w.k_norm.weight));
  }
  RETURN_IF_ERROR(FindVector(name(dense::kFfnNorm), hidden, &w.ffn_norm.weight));
  return FindMatrix(name(dense::kRouter), config.layers[layer].moe.experts, hidden, &w.router);
}

absl::Status DenseWeights::Acquire(absl::Duration stall_limit) {
  absl::Status status = LeaseAll(stall_limit);
  if (status.ok()) {
    status = Resolve();
  }
  if (!status.ok()) {
    Release();
    return status;
  }
  acquired_ = true;
  return absl::OkStatus();
}

bool DenseWeights::TryLease(uint32_t extent) {
  if (extents_[extent] == Extent::kLeased || !client_->TryLease(extent, &leases_[extent])) {
    return false;
  }
  extents_[extent] = Extent::kLeased;
  ++held_;
  return true;
}

absl::Status DenseWeights::LeaseAll(absl::Duration stall_limit) {
  absl::Time last_progress = absl::Now();
  absl::Status trouble;
  const auto handle = [&](const FetchKey& key, const FetchCompletion& completion) {
    if (key.kind != FetchKind::kDense || extents_[key.extent] != Extent::kRequested) {
      return;
    }
    extents_[key.extent] = Extent::kAbsent;
    if (completion.code == absl::StatusCode::kDataLoss) {
      trouble = ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT",
                            absl::StrCat(pack_.ExtentName(key.extent), " is damaged"));
    } else if (completion.code == absl::StatusCode::kOk && TryLease(key.extent)) {
      last_progress = absl::Now();
    }
  };
  for (;;) {
    for (uint32_t extent = 0; extent < extents_.size(); ++extent) {
      if (extents_[extent] != Extent::kAbsent || TryLease(extent)) {
        continue;
      }
      const absl::Status status = fetches_->FetchDense(extent);
      if (absl::IsResourceExhausted(status)) {
        break;  // the ring is full: completions will make room
      }
      RETURN_IF_ERROR(status);
      extents_[extent] = Extent::kRequested;
    }
    if (held_ == extents_.size()) {
      return absl::OkStatus();
    }
    const absl::Time limit = last_progress + stall_limit;
    if (absl::Now() >= limit) {
      return ReasonError(
          absl::StatusCode::kResourceExhausted, "DRAM_TOO_SMALL",
          absl::StrCat("weightd gave ", held_, " of ", extents_.size(), " dense extents; all ",
                       pack_.dense_bytes(), " bytes of them must fit its DRAM budget beside the experts"));
    }
    RETURN_IF_ERROR(client_->Wait(limit));
    fetches_->Poll(handle);
    RETURN_IF_ERROR(trouble);
  }
}

absl::Status DenseWeights::Resolve() {
  for (const Placed& placed : placed_) {
    const ExtentLease& lease = leases_[placed.tensor->extent];
    const BufferRef place = segments_->Place(lease);
    if (!place) {
      return absl::InternalError(absl::StrCat(pack_.ExtentName(placed.tensor->extent),
                                              " is leased in segment ", lease.segment,
                                              ", which was never announced"));
    }
    *placed.place = place + placed.tensor->offset;
  }
  return absl::OkStatus();
}

void DenseWeights::Release() {
  for (uint32_t extent = 0; extent < extents_.size(); ++extent) {
    if (extents_[extent] == Extent::kLeased) {
      client_->Release(extent, 0);
    }
    extents_[extent] = Extent::kAbsent;
  }
  held_ = 0;
  acquired_ = false;
}

}  // namespace sluice
