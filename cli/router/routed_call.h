// RoutedCall: one client's request to one of several models: it waits until the model may run it, then passes
// the request on to the model's inferd and the response back.
//
// While a stream waits, the client gets the comments that inferd sends on a silent stream. The response is
// read from inferd no faster than the client reads it. A client that leaves ends its request at inferd, too.
// A request whose inferd was lost before the response began may be passed on again.
//
// Include it only in sources that use Asio.
//
// Thread safety: the loop's thread uses it, but for the methods of HttpObserver, which the HTTP server's
// thread calls.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/router/upstream_call.h"
#include "daemon/http/http_message.h"

namespace sluice::cli {

class RoutedCall final : public HttpObserver, public std::enable_shared_from_this<RoutedCall> {
 public:
  // `model`: number of the model, for the owner. `streams`: the request asks for a stream. `io` must outlive
  // it.
  RoutedCall(boost::asio::io_context& io, size_t model, bool streams, HttpRequest request,
             std::shared_ptr<HttpExchange> exchange);

  size_t model() const { return model_; }
  const std::string& client() const { return request_.client; }

  // Begins to observe the client. `on_left`: the client has left while the request waits.
  void Begin(std::function<void()> on_left);
  // Passes the request on. `on_end`: the call is over, or (`lost`, with the reason) inferd was lost before
  // its response began, and the request waits again.
  void Forward(const std::string& http_socket, std::function<void(bool lost, const std::string& why)> on_end);
  // Number of times that it was passed on.
  int attempts() const { return attempts_; }
  // Answers with an error. REQUIRES: it waits.
  void Fail(const absl::Status& status);

  // Ticket of the owner's table while the request waits.
  uint64_t ticket = 0;

  void OnReady() override {}
  void OnTick(absl::Time now) override;
  void OnWritten() override;
  void OnEnded(bool disconnected) override;

 private:
  void OnHead(HttpResponse head, std::optional<uint64_t> length);
  bool OnBody(std::string part);
  void OnUpstreamEnd(bool whole, const std::string& why);
  // The client's side is over.
  void OnClientEnd();
  void Ping();
  // Writes an error as the event of a stream that has begun.
  void WriteErrorEvent(const std::string& object);
  void Finish();

  boost::asio::io_context& io_;
  const size_t model_;
  const bool streams_;
  HttpRequest request_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::function<void()> on_left_;
  std::function<void(bool, const std::string&)> on_end_;
  std::shared_ptr<UpstreamCall> upstream_;  // null: it waits, or is over
  int attempts_ = 0;
  bool responded_ = false;  // inferd's response has begun
  bool begun_ = false;      // the client has a stream's head
  bool over_ = false;
  std::optional<HttpResponse> whole_;  // response that is sent when it is complete
  size_t unsent_ = 0;                  // bytes given to the exchange since it had sent all

  std::atomic<bool> waits_{true};  // the next two are read by OnTick()
  const absl::Time arrived_;
  absl::Time pinged_;  // of OnTick() alone
};

}  // namespace sluice::cli
