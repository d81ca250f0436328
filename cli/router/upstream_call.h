// UpstreamCall: one HTTP request to an inferd over its unix socket, with its response as it comes.
//
// The request is one that this server has read and checked (daemon/http), so its method, path and body are
// all that is sent. A response that ends before its end is told from a whole one, as by any client.
//
// Include it only in sources that use Asio.
//
// Thread safety: all of it belongs to the io_context's one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>  // for Boost 1.74
#include <vector>

#include "daemon/http/http_message.h"

namespace sluice::cli {

class UpstreamCall final : public std::enable_shared_from_this<UpstreamCall> {
 public:
  // Called in this order, on the io_context's thread, never within Start() or Cancel().
  struct Events {
    // The head: status, content type and headers; `length` of a body whose length is known.
    std::function<void(HttpResponse head, std::optional<uint64_t> length)> on_head;
    // A part of the body, not empty. False: nothing more is read before Resume().
    std::function<bool(std::string part)> on_body;
    // The end, exactly once unless cancelled. `whole`: the response is complete; otherwise `why` has the
    // reason.
    std::function<void(bool whole, const std::string& why)> on_end;
  };

  // `socket_path`: of inferd's HTTP server. `io` must outlive the call.
  static std::shared_ptr<UpstreamCall> Start(boost::asio::io_context& io, const std::string& socket_path,
                                             const HttpRequest& request, Events events);
  UpstreamCall(boost::asio::io_context& io, const HttpRequest& request, Events events);

  // Continues after on_body() returned false.
  void Resume();
  // Closes the connection, at which inferd ends the request. No event follows.
  void Cancel();

 private:
  using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

  void Read();
  void OnRead(size_t size);
  // Parses what was received, and reports it.
  void Parse();
  void ReportHead();
  void End(bool whole, const std::string& why);

  boost::asio::local::stream_protocol::socket socket_;
  std::string out_;  // the request
  Events events_;
  Parser parser_;
  std::vector<char> buffer_;
  std::string in_;  // received, not parsed
  bool head_reported_ = false;
  bool reading_ = false;
  bool paused_ = false;
  bool over_ = false;
};

}  // namespace sluice::cli
