// ModelService: describes the served model.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include "inferd/grpc/service_call.h"
#include "sluice/inference/v1/evaluation.grpc.pb.h"
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
  void Fill(inference::v1::Model* model) const;

  const ServingContext& context_;
};

// EvaluationService: teacher-forced scoring, rows streamed as the engine computes them.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.

class EvaluationServiceImpl final : public inference::v1::EvaluationService::CallbackService {
 public:
  // `context` is borrowed and must outlive the server.
  explicit EvaluationServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerWriteReactor<inference::v1::ScoreResponse>* Score(
      grpc::CallbackServerContext* call, const inference::v1::ScoreRequest* request) override;

 private:
  const ServiceContext& context_;
};

}  // namespace sluice::inferd
