// ModelService: describes the served model.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/model.grpc.pb.h"

namespace sluice::inferd {

class ModelServiceImpl final : public inference::v1::ModelService::CallbackService {
 public:
  // `context` is borrowed and must outlive the server.
  explicit ModelServiceImpl(const ServingContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const inference::v1::ListModelsRequest* request,
                                       inference::v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const inference::v1::GetModelRequest* request,
                                     inference::v1::GetModelResponse* response) override;

 private:
  const ServingContext& context_;
};

}  // namespace sluice::inferd
