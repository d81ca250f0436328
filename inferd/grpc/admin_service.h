// AdminService: server info, statistics, drain, log level, abort, calibration, on its own socket.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include <cstddef>
#include <functional>

#include "inferd/api/control_api.h"
#include "inferd/grpc/service_call.h"
#include "inferd/serving/server_state.h"
#include "sluice/inference/v1/admin.grpc.pb.h"

namespace sluice::inferd {

class AdminServiceImpl final : public inference::v1::AdminService::CallbackService {
 public:
  // `context` and `tuning` (null: UNIMPLEMENTED) are borrowed and must outlive the server;
  // `count_connections` is called from any thread.
  AdminServiceImpl(const ServiceContext& context, TuningApi* tuning,
                   std::function<size_t()> count_connections)
      : context_(context), tuning_(tuning), count_connections_(std::move(count_connections)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* call,
                                          const inference::v1::GetServerInfoRequest* request,
                                          inference::v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const inference::v1::GetStatsRequest* request,
                                     inference::v1::GetStatsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const inference::v1::DrainRequest* request,
                                  inference::v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Tune(grpc::CallbackServerContext* call, const inference::v1::TuneRequest* request,
                                 inference::v1::TuneResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* call,
                                        const inference::v1::SetLogLevelRequest* request,
                                        inference::v1::SetLogLevelResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* call,
                                  const inference::v1::AbortRequest* request,
                                  inference::v1::AbortResponse* response) override;
  grpc::ServerWriteReactor<inference::v1::CalibrateResponse>* Calibrate(
      grpc::CallbackServerContext* call, const inference::v1::CalibrateRequest* request) override;

 private:
  const ServiceContext& context_;
  TuningApi* const tuning_;
  const std::function<size_t()> count_connections_;
};

}  // namespace sluice::inferd
