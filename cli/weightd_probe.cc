#include "cli/weightd_probe.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/status.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

// The value in effect, as the flag takes it.
std::string ValueOf(const sluice::weights::v1::GetStatsResponse& stats, const std::string& name) {
  if (name == "dram-budget") {
    return absl::StrCat(stats.dram_budget_bytes());
  }
  if (name == "io") {
    return absl::StartsWith(stats.io_engine(), "uring") ? "uring" : "pread";
  }
  return absl::StrContains(stats.io_engine(), "O_DIRECT") ? "on" : "off";
}

}  // namespace

absl::Status CompareWithWeightd(const std::string& socket, const std::vector<OptionSetting>& asked,
                                std::vector<std::string>* differences) {
  const auto stub = sluice::weights::v1::WeightService::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_authority("localhost");
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  sluice::weights::v1::GetStatsResponse stats;
  RETURN_IF_ERROR(Annotate(FromGrpcStatus(stub->GetStats(&context, {}, &stats)),
                           absl::StrCat("cannot ask weightd at ", socket)));
  for (const OptionSetting& setting : asked) {
    const std::string value = ValueOf(stats, setting.name);
    if (!SameOptionValue(value, setting.value)) {
      differences->push_back(
          absl::StrCat("weightd has --", setting.name, " ", value, ", not ", setting.value));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
