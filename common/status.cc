#include "common/status.h"

#include <cerrno>
#include <cstring>

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

}  // namespace sluice
