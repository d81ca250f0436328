// `sluice tune`: changes the shares of memory for experts and KV cache while requests run.

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/runtime_paths.h"
#include "common/base/clock.h"
#include "common/base/runtime_dir.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "daemon/grpc_status.h"
#include "sluice/inference/v1/admin.grpc.pb.h"

namespace sluice::cli {
namespace {

namespace v1 = ::sluice::inference::v1;

// A step may take long, and weightd's clients must unmap the memory that it releases.
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Options {
  std::string admin;
  std::optional<uint64_t> dram_budget;
  std::optional<uint64_t> kv_budget;
  std::optional<uint64_t> context;
  bool json = false;
};

absl::StatusOr<v1::TuneResponse> Ask(const Options& o) {
  ASSIGN_OR_RETURN(const std::string address, AdminAddressFrom(o.admin));
  const auto stub =
      v1::AdminService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::TuneRequest request;
  if (o.dram_budget.has_value()) request.set_dram_budget_bytes(*o.dram_budget);
  if (o.kv_budget.has_value()) request.set_kv_budget_bytes(*o.kv_budget);
  if (o.context.has_value()) request.set_context(static_cast<uint32_t>(*o.context));
  grpc::ClientContext context;
  context.set_authority("localhost");
  context.set_deadline(absl::ToChronoTime(ToWallClock(SteadyNow() + kPatience)));
  v1::TuneResponse response;
  RETURN_IF_ERROR(Annotate(FromGrpcStatus(stub->Tune(&context, request, &response)),
                           absl::StrCat("inferd at ", o.admin)));
  return response;
}

absl::StatusOr<int> Tune(const Options& o) {
  ASSIGN_OR_RETURN(const v1::TuneResponse tuned, Ask(o));
  if (o.json) {
    return PrintJson(
        Json::Object()
            .Set("dram_budget", tuned.dram_budget_bytes() == 0 ? Json() : Json(tuned.dram_budget_bytes()))
            .Set("segment_bytes", tuned.dram_budget_bytes() == 0 ? Json() : Json(tuned.segment_bytes()))
            .Set("kv_bytes", tuned.kv_bytes())
            .Set("kv_pages", tuned.kv_pages())
            .Set("context", tuned.context())
            .Set("restarted", tuned.restarted()));
  }
  std::string text;
  if (tuned.dram_budget_bytes() > 0) {
    absl::StrAppend(&text, "weights: at most ", FormatSize(tuned.dram_budget_bytes()), ", of which ",
                    FormatSize(tuned.segment_bytes()), " are taken\n");
  }
  absl::StrAppendFormat(&text, "KV cache: %s in %d pages; context %d\n", FormatSize(tuned.kv_bytes()),
                        tuned.kv_pages(), tuned.context());
  if (tuned.restarted() > 0) {
    absl::StrAppend(&text, tuned.restarted(), " running answers compute their past again, and go on\n");
  }
  RETURN_IF_ERROR(WriteStdout(text));
  return kExitOk;
}

}  // namespace

int RunTune(const CommandContext&, const std::vector<std::string>& args) {
  Options options;
  options.admin = RuntimePaths(RuntimeDirPath()).inferd_admin_socket;
  ArgParser parser(
      "sluice tune",
      "Gives experts and the KV cache other shares of the memory, while requests run. None ends by it.");
  parser.Size("--dram-budget", &options.dram_budget, "bytes of memory for weights [as it is]")
      .Size("--kv-budget", &options.kv_budget, "bytes of the KV cache [as it is]")
      .Number("--context", &options.context,
              "tokens of prompt and answer together, at most what the start laid out [as it is]", 1, 1u << 30)
      .Text("--admin", &options.admin, "SOCKET of inferd's operators [in the runtime directory]")
      .Flag("--json", &options.json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (!options.dram_budget.has_value() && !options.kv_budget.has_value() && !options.context.has_value()) {
    return parser.UsageError("nothing to change: --dram-budget, --kv-budget and --context are all absent");
  }
  const absl::StatusOr<int> code = Tune(options);
  return code.ok() ? *code : Fail("sluice tune", code.status(), options.json);
}

}  // namespace sluice::cli
