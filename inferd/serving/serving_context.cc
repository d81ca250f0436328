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
