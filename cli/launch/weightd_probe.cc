#include "cli/launch/weightd_probe.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "daemon/grpc/grpc_status.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::vector<OptionSetting>> AskWeightd(const std::string& socket) {
  const auto stub = sluice::weights::v1::WeightService::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_authority("localhost");
  context.set_wait_for_ready(true);  // it may be between two lives
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  sluice::weights::v1::GetStatsResponse stats;
  RETURN_IF_ERROR(Annotate(FromGrpcStatus(stub->GetStats(&context, {}, &stats)),
                           absl::StrCat("cannot ask weightd at ", socket)));
  return std::vector<OptionSetting>{
      {"dram-budget", absl::StrCat(stats.dram_budget_bytes())},
      {"io", absl::StartsWith(stats.io_engine(), "uring") ? "uring" : "pread"},
      {"direct", absl::StrContains(stats.io_engine(), "O_DIRECT") ? "on" : "off"}};
}

}  // namespace sluice::cli
