#include "inferd/service/model_service.h"

#include "inferd/service/service_call.h"
#include "inferd/service/service_request.h"
#include "inferd/service/service_response.h"

namespace sluice::inferd {

namespace v1 = inference::v1;

grpc::ServerUnaryReactor* ModelServiceImpl::ListModels(grpc::CallbackServerContext* call,
                                                       const v1::ListModelsRequest* request,
                                                       v1::ListModelsResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  if (status.ok()) {
    FillModel(context_.model, context_.tokenizer != nullptr, response->add_models());
  }
  return Reply(call, status);
}

grpc::ServerUnaryReactor* ModelServiceImpl::GetModel(grpc::CallbackServerContext* call,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  status.Update(CheckModel(context_, request->model()));
  if (status.ok()) {
    FillModel(context_.model, context_.tokenizer != nullptr, response->mutable_model());
  }
  return Reply(call, status);
}

}  // namespace sluice::inferd
