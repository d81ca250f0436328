// RoutedHttpCall: a call (routed_call.h) over HTTP.
//
// While a stream waits, the client gets the comments that inferd sends on a silent stream. The response is
// read from inferd no faster than the client reads it.
//
// Include it only in sources that use Asio.
//
// Thread safety: the loop's thread uses it, but for the methods of HttpObserver, which the HTTP server's
// thread calls.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/router/routed_call.h"
#include "cli/router/upstream_call.h"
#include "daemon/http/http_message.h"

namespace sluice::cli {

class RoutedHttpCall final : public RoutedCall,
                             public HttpObserver,
                             public std::enable_shared_from_this<RoutedHttpCall> {
 public:
  // `streams`: the request asks for a stream. `io` must outlive it.
  RoutedHttpCall(boost::asio::io_context& io, size_t model, bool streams, HttpRequest request,
                 std::shared_ptr<HttpExchange> exchange);

  void Begin(std::function<void()> on_left) override;
  void Forward(const ModelServers& servers, OnEnd on_end) override;
  int attempts() const override { return attempts_; }
  void Fail(const absl::Status& status) override;

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
  const bool streams_;
  HttpRequest request_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::function<void()> on_left_;
  OnEnd on_end_;
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
