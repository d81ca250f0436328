// Helpers of all handlers: facts of a call, and calls that end at once.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/grpc/grpc_status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "inferd/service/service_request.h"
#include "inferd/service/service_response.h"

namespace sluice::inferd {

// Returns the client, the request id and the deadline of a call.
CallFacts FactsOf(const grpc::CallbackServerContext& call);

// Ends a unary call with `status`.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* call, absl::Status status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(Explain(std::move(status))));
  return reactor;
}

// Ends a streaming call with `status` without a message.
template <typename Response>
grpc::ServerWriteReactor<Response>* Refuse(absl::Status status) {
  class Refusal final : public grpc::ServerWriteReactor<Response> {
   public:
    explicit Refusal(const grpc::Status& status) { this->Finish(status); }
    void OnDone() override { delete this; }
  };
  return new Refusal(ToGrpcStatus(Explain(std::move(status))));
}

}  // namespace sluice::inferd
