// Status helpers: propagation macros and the one place where errno becomes a Status.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"

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
