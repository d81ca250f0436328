// Transport: bytes to and from one client, plain or by TLS, over TCP or a unix socket; and what TLS needs.
//
// Included by the few sources that know of Asio.
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

class Transport {
 public:
  using Done = std::function<void(boost::system::error_code, size_t)>;

  virtual ~Transport() = default;
  // Before all else; done at once without TLS.
  virtual void Handshake(Done done) = 0;
  // Some bytes, at least one. One read and one write may be under way; the memory stays until they are done.
  virtual void Read(char* data, size_t size, Done done) = 0;
  virtual void Write(const char* data, size_t size, Done done) = 0;
  // Tells the client that nothing follows. It may still send.
  virtual void ShutDownSending() = 0;
  // Ends reads and writes under way with an error.
  virtual void Close() = 0;
};

// `tls` null: plain.
std::shared_ptr<Transport> MakeTransport(StreamSocket socket, std::shared_ptr<TlsContext> tls);

// TLS 1.2 and up with the certificate chain and the key of these PEM files. INVALID_ARGUMENT naming the file,
// also where the key does not belong to the certificate.
absl::StatusOr<std::shared_ptr<TlsContext>> LoadTls(const std::string& certificate_file,
                                                    const std::string& key_file);

}  // namespace sluice
