// GrpcServices: the gRPC services of a server of several models. Calls of InferenceService and
// EvaluationService go to the inferd of the model that they name (routed_grpc_call.h); ModelService is
// answered here.
//
// Include it only in sources that use Asio.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/router/routed_call.h"
#include "daemon/grpc_server.h"
#include "sluice/inference/v1/model.pb.h"

namespace sluice::cli {

// Hooks of the owner. The first is called by gRPC's threads, the others on the loop's.
struct GrpcHooks {
  // Number of a model by its name or id, or the error of a request that has another one.
  std::function<absl::StatusOr<size_t>(const std::string& name)> find;
  // A call begins, and waits for its model.
  std::function<void(const std::shared_ptr<RoutedCall>& call)> admit;
  // Describes a model and its state.
  std::function<void(size_t model, inference::v1::Model* out)> describe;
};

class GrpcServices {
 public:
  // `io` must outlive the calls. `models`: their number.
  GrpcServices(boost::asio::io_context& io, size_t models, GrpcHooks hooks);
  ~GrpcServices();

  // For GrpcServer::Start(); valid as long as this.
  std::vector<NamedService> services() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace sluice::cli
