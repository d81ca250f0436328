#include "inferd/serving/serving_context.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/cord.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "pack/pack.h"

namespace sluice::inferd {
namespace {

// Retry hint for refused clients: a place in the queue is likely to be free by then.
constexpr absl::Duration kQueueRetryDelay = absl::Seconds(1);

// Default reason of an error: every error has a machine-readable reason, also if its origin set none.
const char* DefaultReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "INVALID_FIELD";
    case absl::StatusCode::kUnimplemented:
      return "NOT_IN_THIS_BUILD";
    case absl::StatusCode::kNotFound:
      return "REQUEST_NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "REQUEST_EXISTS";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kDataLoss:
      return "WEIGHT_CORRUPT";
    default:
      return "INTERNAL";
  }
}

}  // namespace

ServedModel DescribeModel(const Pack& pack, const std::string& dir, uint32_t context) {
  const ModelConfig& config = pack.config();
  ServedModel model;
  model.id = pack.model_id();
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(dir, error);
  model.name = (error ? std::filesystem::path(dir) : canonical).filename().string();
  model.family = config.family;
  model.vocab = config.vocab;
  model.hidden = config.hidden;
  model.layers = ModelLayers(config);
  for (const LayerConfig& layer : config.layers) {
    model.experts_per_layer = std::max(model.experts_per_layer, layer.moe.experts);
    model.experts_per_token = std::max(model.experts_per_token, layer.moe.top_k);
  }
  model.context = context;
  model.max_position = config.max_position;
  if (!config.bos_ids.empty()) {
    model.bos = config.bos_ids.front();
  }
  model.eos = config.eos_ids;
  model.generation = pack.generation();
  model.has_chat_template = !pack.chat_template().empty();
  model.expert_bytes = pack.total_expert_bytes();
  model.dense_bytes = pack.dense_bytes();
  return model;
}

absl::Status Explain(absl::Status status) {
  if (status.ok()) {
    return status;
  }
  if (ReasonOf(status).empty()) {
    status.SetPayload(kReasonPayload, absl::Cord(DefaultReason(status.code())));
  }
  if (ReasonOf(status) == "QUEUE_FULL" && !RetryDelayOf(status).has_value()) {
    status = WithRetryDelay(std::move(status), kQueueRetryDelay);
  }
  return status;
}

}  // namespace sluice::inferd
