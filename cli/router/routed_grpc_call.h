// RoutedGrpcCall: a call (routed_call.h) over gRPC, unary or with a stream of responses. Messages pass
// unread, as they are on the wire; errors of inferd keep their details.
//
// One response at a time is on the way: the next one is read from inferd when the client's connection has
// taken the last, so inferd sees the pace of its reader. The client's deadline and its `x-request-id` go with
// the call.
//
// Include it only in sources that use Asio.
//
// Thread safety: the loop's thread uses it, but for the methods of the client's side, which may be called by
// any.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/router/routed_call.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace sluice::cli {

// The client of a call, as gRPC's server has it. It lives until Finish().
class GrpcClient {
 public:
  virtual ~GrpcClient() = default;
  // Sends a response; RoutedGrpcCall::OnWritten() follows. One at a time.
  virtual void Write(grpc::ByteBuffer response) = 0;
  // Ends the call.
  virtual void Finish(const grpc::Status& status) = 0;
};

class RoutedGrpcCall final : public RoutedCall, public std::enable_shared_from_this<RoutedGrpcCall> {
 public:
  // `method`: "/package.Service/Method". `context` and `client`: borrowed until the client's Finish(). `io`
  // must outlive it.
  RoutedGrpcCall(boost::asio::io_context& io, size_t model, std::string method, grpc::ByteBuffer request,
                 grpc::CallbackServerContext* context, GrpcClient* client);
  ~RoutedGrpcCall() override;

  void Begin(std::function<void()> on_left) override;
  void Forward(const ModelServers& servers, OnEnd on_end) override;
  int attempts() const override { return attempts_; }
  void Fail(const absl::Status& status) override;

  // The client's side: a response was sent, or could not be; the client has left, or its deadline passed.
  void OnWritten(bool sent);
  void OnCancelled();

 private:
  class Upstream;

  // On the loop's thread.
  void OnResponse(bool more, grpc::ByteBuffer response);
  void OnUpstreamEnd(const grpc::Status& status);
  void ReadOn(bool sent);
  void Leave();
  void LimitWrite();
  void FinishClient(const grpc::Status& status);

  boost::asio::io_context& io_;
  const std::string method_;
  const grpc::ByteBuffer request_;
  grpc::CallbackServerContext* const context_;  // valid while client_ is
  GrpcClient* client_;                          // null: finished
  boost::asio::steady_timer stall_;             // of the response that the client takes
  std::function<void()> on_left_;
  OnEnd on_end_;
  std::shared_ptr<Upstream> upstream_;  // null: it waits, or is over
  int attempts_ = 0;
  bool responded_ = false;  // the client has a response
  bool left_ = false;
};

}  // namespace sluice::cli
