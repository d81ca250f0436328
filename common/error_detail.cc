#include "common/error_detail.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// Details travel as payloads of the status, not in its message, so they survive Annotate() and reach the gRPC
// conversion without parsing.
std::string PayloadText(const absl::Status& status, const char* type) {
  const absl::optional<absl::Cord> payload = status.GetPayload(type);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status ReasonError(absl::StatusCode code, const std::string& reason, const std::string& message) {
  absl::Status status(code, message);
  status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) { return PayloadText(status, kReasonPayload); }

absl::Status FieldError(absl::StatusCode code, const std::string& field, const std::string& description) {
  absl::Status status =
      ReasonError(code, code == absl::StatusCode::kUnimplemented ? "UNSUPPORTED_FIELD" : "INVALID_FIELD",
                  absl::StrCat(field, ": ", description));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::string FieldOf(const absl::Status& status) { return PayloadText(status, kFieldPayload); }

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  if (!status.ok()) {
    status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(delay))));
  }
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  int64_t milliseconds = 0;
  if (!absl::SimpleAtoi(PayloadText(status, kRetryPayload), &milliseconds) || milliseconds < 0) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace sluice
