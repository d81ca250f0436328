// TLS of a gRPC server, with client certificates: who has none that the authority signed is not let in.
//
// The files are read again when they change, so a certificate is renewed by writing it; connections that are
// open go on with what they have.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"

namespace sluice {

// PEM files; all or none.
struct GrpcTls {
  std::string certificate;  // the server's, with its chain
  std::string key;
  std::string client_ca;  // signs clients' certificates

  bool enabled() const { return !certificate.empty(); }
};

// INVALID_ARGUMENT if some are named and others not. Opens nothing.
absl::Status CheckGrpcTls(const GrpcTls& tls);

// INVALID_ARGUMENT naming a file that cannot be read, or a key that is another certificate's.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> LoadGrpcTls(const GrpcTls& tls);

}  // namespace sluice
