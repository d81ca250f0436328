// Status helpers: propagation macros, the one place where errno becomes a Status, and machine-readable
// facts about an error.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice {

// Returns the Status for a failed system call: a canonical code for `error_number`, and the message
// "<what>: <strerror> (errno <n>)". `what` names the subject (file, offset, socket).
absl::Status ErrnoToStatus(int error_number, const std::string& what);

// Returns `status` with "<context>: " before its message; OK stays OK. Payloads are kept.
absl::Status Annotate(const absl::Status& status, const std::string& context);

}  // namespace sluice

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

// Returns the Status from the enclosing function if it is not OK.
#define RETURN_IF_ERROR(expr)                                         \
  do {                                                                \
    if (absl::Status sluice_status_ = (expr); !sluice_status_.ok()) { \
      return sluice_status_;                                          \
    }                                                                 \
  } while (false)

// ASSIGN_OR_RETURN(auto x, Function()): x is the value, or the enclosing function returns the error.
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(SLUICE_CONCAT(sluice_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  if (!tmp.ok()) {                            \
    return std::move(tmp).status();           \
  }                                           \
  lhs = *std::move(tmp)

// Machine-readable facts about an error, carried as payloads of an absl::Status: a stable reason word, the
// request field at fault, and the delay after which a retry can succeed. daemon/grpc_status.h converts
// them to gRPC's status details and back.
//
// Thread safety: pure functions, safe to call from any thread.

namespace sluice {

// Payload types.
inline constexpr char kReasonPayload[] = "sluice/reason";
inline constexpr char kFieldPayload[] = "sluice/field";
inline constexpr char kRetryPayload[] = "sluice/retry-milliseconds";

// `code` with `message` and the reason word ("QUEUE_FULL", "CONTEXT_TOO_LONG", "WEIGHT_CORRUPT", ...).
// REQUIRES: code is not OK.
absl::Status ReasonError(absl::StatusCode code, const std::string& reason, const std::string& message);
// The reason word of `status`, or "" if it has none.
std::string ReasonOf(const absl::Status& status);

// `code` about the request's field `field` (a path such as "spec.sampling.top_p"); the message begins with
// the path. The reason is INVALID_FIELD, for UNIMPLEMENTED it is UNSUPPORTED_FIELD.
absl::Status FieldError(absl::StatusCode code, const std::string& field, const std::string& description);
// The field at fault, or "".
std::string FieldOf(const absl::Status& status);

// Returns `status` with the hint that a retry after `delay` can succeed, in whole milliseconds; OK stays OK.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
// The retry hint; absent if a retry cannot succeed.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace sluice
