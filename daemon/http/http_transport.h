// HttpTransport: byte stream to and from one client, plain or TLS, over TCP or a unix socket; and its TLS
// context.
//
// Include it only in sources that use Asio.
//
// Thread safety: thread-compatible; the io_context's one thread uses it.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>  // Boost 1.74's Asio uses std::exchange without including it

#include "absl/status/statusor.h"

namespace sluice {

using StreamSocket = boost::asio::generic::stream_protocol::socket;
using TlsContext = boost::asio::ssl::context;

class HttpTransport {
 public:
  using Done = std::function<void(boost::system::error_code, size_t)>;

  virtual ~HttpTransport() = default;
  // Runs the TLS handshake, first of all; completes at once without TLS.
  virtual void Handshake(Done done) = 0;
  // Reads at least one byte. One read and one write may be pending; their memory must stay valid until done.
  virtual void Read(char* data, size_t size, Done done) = 0;
  virtual void Write(const char* data, size_t size, Done done) = 0;
  // Closes the sending side; the client may still send.
  virtual void ShutDownSending() = 0;
  // Aborts pending reads and writes with an error.
  virtual void Close() = 0;
};

// `tls` null: plain.
std::shared_ptr<HttpTransport> MakeHttpTransport(StreamSocket socket, std::shared_ptr<TlsContext> tls);

// Creates a context for TLS 1.2 and up with the certificate chain and the key of these PEM files.
// INVALID_ARGUMENT naming the file, also if the key does not match the certificate.
absl::StatusOr<std::shared_ptr<TlsContext>> LoadTls(const std::string& certificate_file,
                                                    const std::string& key_file);

}  // namespace sluice
