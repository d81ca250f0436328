// TLS of a gRPC server, with client certificates: a client without one that the authority signed is refused.
//
// The files are read again when they change, so writing the file renews a certificate; open connections keep
// the old one.
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

// INVALID_ARGUMENT if only some of the files are named. Opens nothing.
absl::Status CheckGrpcTls(const GrpcTls& tls);

// INVALID_ARGUMENT naming an unreadable file, or a key that does not match its certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> LoadGrpcTls(const GrpcTls& tls);

}  // namespace sluice
