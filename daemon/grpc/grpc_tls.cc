#include "daemon/grpc/grpc_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace sluice {
namespace {

// Time after which a renewed file is in use at the latest.
constexpr unsigned kRefreshSeconds = 5;

absl::Status Failed(const std::string& what) {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", reason == nullptr ? "it is broken" : reason));
}

// gRPC would serve with broken files and refuse every handshake, so the files are checked first.
absl::Status TryFiles(const GrpcTls& tls) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError("OpenSSL has no TLS");
  }
  if (SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate.c_str()) != 1) {
    return Failed(absl::StrCat("--tls-certificate ", tls.certificate));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), tls.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Failed(absl::StrCat("--tls-key ", tls.key));
  }
  if (SSL_CTX_load_verify_locations(context.get(), tls.client_ca.c_str(), nullptr) != 1) {
    return Failed(absl::StrCat("--tls-client-ca ", tls.client_ca));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGrpcTls(const GrpcTls& tls) {
  if (tls.certificate.empty() == tls.key.empty() && tls.key.empty() == tls.client_ca.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tls-certificate, --tls-key and --tls-client-ca go together: gRPC's clients beyond this machine are "
      "known by their certificates");
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> LoadGrpcTls(const GrpcTls& tls) {
  RETURN_IF_ERROR(CheckGrpcTls(tls));
  RETURN_IF_ERROR(TryFiles(tls));
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(tls.key, tls.certificate,
                                                                           tls.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace sluice
