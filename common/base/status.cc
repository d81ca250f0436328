#include "common/base/status.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

absl::StatusCode ErrnoCode(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOTDIR:
      return absl::StatusCode::kInvalidArgument;
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
      return absl::StatusCode::kUnavailable;
    // A disk that cannot return its data has lost it.
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

// The one place that turns errno into a status. strerror_r is the GNU one, which returns its text.
absl::Status ErrnoToStatus(int error_number, const std::string& what) {
  char buffer[128];
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  return absl::Status(ErrnoCode(error_number), absl::StrCat(what, ": ", text, " (errno ", error_number, ")"));
}

absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) {
    return status;
  }
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&annotated](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

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
