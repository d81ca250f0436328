// RoutedCall: one client's request to one of several models: it waits until the model may run it, then passes
// the request on to the model's inferd and the response back. The router's loop (model_router.h) knows the
// calls of both protocols by it.
//
// A client that leaves ends its request at inferd, too. A request whose inferd was lost before the response
// began may be passed on again.
//
// Thread safety: the loop's thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace sluice::cli {

// Ways to the inferd of a loaded model.
struct ModelServers {
  std::string http_socket;              // path
  std::shared_ptr<grpc::Channel> grpc;  // a channel of each load: none waits after the loss of the one before
};

class RoutedCall {
 public:
  // `lost`, with the reason: inferd was lost before its response began, and the request waits again;
  // otherwise the call is over.
  using OnEnd = std::function<void(bool lost, const std::string& why)>;

  // `model`: number of the model, for the owner.
  explicit RoutedCall(size_t model) : model_(model) {}
  virtual ~RoutedCall() = default;

  size_t model() const { return model_; }

  // Begins to observe the client. `on_left`: the client has left while the request waits.
  virtual void Begin(std::function<void()> on_left) = 0;
  // Passes the request on.
  virtual void Forward(const ModelServers& servers, OnEnd on_end) = 0;
  // Number of times that it was passed on.
  virtual int attempts() const = 0;
  // Answers with an error. REQUIRES: it waits.
  virtual void Fail(const absl::Status& status) = 0;

  // Ticket of the owner's table while the request waits.
  uint64_t ticket = 0;

 private:
  const size_t model_;
};

}  // namespace sluice::cli
