#include "daemon/http/http_transport.h"

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

namespace asio = boost::asio;

class PlainTransport final : public HttpTransport {
 public:
  explicit PlainTransport(StreamSocket socket) : socket_(std::move(socket)) {}
  void Handshake(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done({}, 0); });
  }
  void Read(char* data, size_t size, Done done) override {
    socket_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void Write(const char* data, size_t size, Done done) override {
    socket_.async_write_some(asio::buffer(data, size), std::move(done));
  }
  void ShutDownSending() override {
    boost::system::error_code ignored;
    socket_.shutdown(StreamSocket::shutdown_send, ignored);
  }
  void Close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  StreamSocket socket_;
};

class TlsTransport final : public HttpTransport, public std::enable_shared_from_this<TlsTransport> {
 public:
  TlsTransport(StreamSocket socket, std::shared_ptr<TlsContext> tls)
      : tls_(std::move(tls)), stream_(std::move(socket), *tls_) {}
  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [done = std::move(done)](boost::system::error_code error) { done(error, 0); });
  }
  void Read(char* data, size_t size, Done done) override {
    stream_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void Write(const char* data, size_t size, Done done) override {
    stream_.async_write_some(asio::buffer(data, size), std::move(done));
  }
  // The client answers by closing its side, or the connection's timeout expires.
  void ShutDownSending() override {
    stream_.async_shutdown([self = shared_from_this()](boost::system::error_code) {});
  }
  void Close() override {
    boost::system::error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  const std::shared_ptr<TlsContext> tls_;  // connections keep their first context
  asio::ssl::stream<StreamSocket> stream_;
};

}  // namespace

std::shared_ptr<HttpTransport> MakeHttpTransport(StreamSocket socket, std::shared_ptr<TlsContext> tls) {
  if (tls == nullptr) {
    return std::make_shared<PlainTransport>(std::move(socket));
  }
  return std::make_shared<TlsTransport>(std::move(socket), std::move(tls));
}

absl::StatusOr<std::shared_ptr<TlsContext>> LoadTls(const std::string& certificate_file,
                                                    const std::string& key_file) {
  auto tls = std::make_shared<TlsContext>(TlsContext::tls_server);
  SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(tls->native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  boost::system::error_code error;
  tls->use_certificate_chain_file(certificate_file, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS certificate ", certificate_file, ": ", error.message()));
  }
  tls->use_private_key_file(key_file, TlsContext::pem, error);
  if (error || SSL_CTX_check_private_key(tls->native_handle()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS key ", key_file, ": ",
                     error ? error.message() : absl::StrCat("it does not belong to ", certificate_file)));
  }
  return tls;
}

}  // namespace sluice
