#include "inferd/grpc/service_call.h"

#include <chrono>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "daemon/grpc_server.h"

namespace sluice::inferd {

CallFacts FactsOf(const grpc::CallbackServerContext& call) {
  CallFacts facts;
  facts.client = ClientClassOf(call);
  const auto id = call.client_metadata().find("x-request-id");
  if (id != call.client_metadata().end()) {
    facts.request_id = std::string(id->second.data(), id->second.size());
  }
  const std::chrono::system_clock::time_point deadline = call.deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    facts.deadline = FromWallClock(absl::FromChrono(deadline));
  }
  return facts;
}

}  // namespace sluice::inferd
