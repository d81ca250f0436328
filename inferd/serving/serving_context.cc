#include "inferd/serving/serving_context.h"

#include "absl/strings/cord.h"
#include "common/base/status.h"

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

void LogRequestEnd(const ServingContext& context, const std::string& kind, const std::string& request_id,
                   const std::string& client, const FinishInfo* info, const absl::Status& status) {
  if (context.metrics != nullptr) {
    context.metrics->Ended(info, status);
  }
  if (info == nullptr) {
    context.log->info("{} id={} client={} code={} message=\"{}\"", kind, request_id, client,
                      absl::StatusCodeToString(status.code()), std::string(status.message()));
    return;
  }
  const Timings& t = info->timings;
  const double decoded = info->usage.completion_tokens > 1 ? info->usage.completion_tokens - 1 : 0;
  context.log->info(
      "{} id={} client={} code={} prompt={} cached={} completion={} queue_seconds={:.3f} ttft_seconds={:.3f} "
      "tpot_seconds={:.4f} stall_seconds={:.3f} expert_requests={} expert_hits={} bytes_ssd={} bytes_link={}",
      kind, request_id, client, absl::StatusCodeToString(status.code()), info->usage.prompt_tokens,
      info->usage.cached_prompt_tokens, info->usage.completion_tokens, t.queue_seconds,
      t.queue_seconds + t.prompt_seconds, decoded > 0 ? t.decode_seconds / decoded : 0.0, t.stall_seconds,
      t.expert_requests, t.expert_hits, t.bytes_ssd, t.bytes_link);
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
