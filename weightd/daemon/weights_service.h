// The gRPC server of weightd: sluice.weights.v1.WeightService over a WeightStore. Handlers check, call and
// convert; they hold no state of their own.
//
// Thread safety: thread-safe; gRPC calls the handlers from its own threads.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "weightd/daemon/warm_set.h"
#include "weightd/engine/side_listener.h"
#include "weightd/engine/weight_store.h"

namespace sluice::weightd {

inline constexpr char kWeightServiceName[] = "sluice.weights.v1.WeightService";

class WeightsService final : public weights::v1::WeightService::CallbackService {
 public:
  struct Options {
    std::string side_socket;         // its absolute path
    std::function<void()> on_drain;  // called once after Drain
    absl::Time started;
  };

  // All borrowed; they outlive the service.
  WeightsService(WeightStore* store, SessionNonces* nonces, WarmSets* warm_sets, Options options)
      : store_(store), nonces_(nonces), warm_sets_(warm_sets), options_(std::move(options)) {}

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const weights::v1::OpenSessionRequest* request,
                                        weights::v1::OpenSessionResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const weights::v1::CloseSessionRequest* request,
                                         weights::v1::CloseSessionResponse* response) override;
  grpc::ServerUnaryReactor* DescribePack(grpc::CallbackServerContext* context,
                                         const weights::v1::DescribePackRequest* request,
                                         weights::v1::DescribePackResponse* response) override;
  grpc::ServerUnaryReactor* SetWarmSet(grpc::CallbackServerContext* context,
                                       const weights::v1::SetWarmSetRequest* request,
                                       weights::v1::SetWarmSetResponse* response) override;
  grpc::ServerUnaryReactor* GetWarmSet(grpc::CallbackServerContext* context,
                                       const weights::v1::GetWarmSetRequest* request,
                                       weights::v1::GetWarmSetResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const weights::v1::GetStatsRequest* request,
                                     weights::v1::GetStatsResponse* response) override;
  grpc::ServerUnaryReactor* SetDramBudget(grpc::CallbackServerContext* context,
                                          const weights::v1::SetDramBudgetRequest* request,
                                          weights::v1::SetDramBudgetResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const weights::v1::DrainRequest* request,
                                  weights::v1::DrainResponse* response) override;

 private:
  // The number of the pack; NOT_FOUND with the list of served packs.
  absl::StatusOr<uint32_t> Find(const weights::v1::PackRef& ref) const;
  absl::StatusOr<SessionParams> ParamsOf(const weights::v1::OpenSessionRequest& request) const;
  absl::Status Open(const weights::v1::OpenSessionRequest& request,
                    weights::v1::OpenSessionResponse* response);

  WeightStore* const store_;
  SessionNonces* const nonces_;
  WarmSets* const warm_sets_;
  const Options options_;
};

// weightd's metrics in Prometheus' text format.
//
// Thread safety: a free function; it locks the store once, for the counters that its lock guards.

std::string WeightdMetrics(const WeightStore& store, const std::string& version);

}  // namespace sluice::weightd
