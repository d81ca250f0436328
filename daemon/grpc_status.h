// The only conversion of an absl::Status to a grpc::Status and back.
//
// Codes map by number; UNKNOWN becomes INTERNAL, because none of our failures is unknown. Reason, field and
// retry hint (common/base/status.h) travel as google.rpc ErrorInfo (domain "sluice"), BadRequest and
// RetryInfo in the status details ("grpc-status-details-bin").
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace sluice {

inline constexpr char kErrorDomain[] = "sluice";

grpc::Status ToGrpcStatus(const absl::Status& status);

// Details that are missing, malformed or of another domain are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice
