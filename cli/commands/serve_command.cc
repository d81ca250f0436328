// `sluice serve`: both daemons with inferd's HTTP door open, until Ctrl-C.
#include <poll.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/launch/launcher.h"
#include "cli/ui/command.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:8080";
constexpr int kLookEveryMs = 200;
// A lost inferd is started again by its supervisor; longer is a failure.
constexpr absl::Duration kPatience = absl::Seconds(30);

struct Options {
  CommonOptions common;
};

absl::StatusOr<int> Serve(const CommandContext& context, Options options) {
  CommonOptions& common = options.common;
  if (common.http.empty()) {
    common.http = {kDefaultAddress};
  }
  // The daemons have a working directory of their own.
  for (std::optional<std::string>* file :
       {&common.http_keys, &common.http_tls_certificate, &common.http_tls_key}) {
    if (file->has_value()) {
      *file = std::filesystem::absolute(**file).string();
    }
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher,
                   Launcher::Launch(context, common, /*json=*/false));
  const char* scheme = common.http_tls_certificate.has_value() ? "https" : "http";
  for (const std::string& address : common.http) {
    const std::string shown =
        absl::StartsWith(address, "unix:") ? address : absl::StrCat(scheme, "://", address, "/v1");
    std::fprintf(stderr, "sluice: serving %s at %s; Ctrl-C ends it\n", launcher->model().name().c_str(),
                 shown.c_str());
  }
  for (int turn = 1; !context.interrupt->requested(); ++turn) {
    poll(nullptr, 0, kLookEveryMs);
    if (turn % 50 == 0 && !context.interrupt->requested()) {  // every 10 s
      if (const absl::Status serving = launcher->client().CheckServing(kPatience);
          !serving.ok() && !context.interrupt->requested()) {
        return serving;
      }
    }
  }
  return kExitOk;
}

}  // namespace

int RunServe(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice serve", "Serves a pack to HTTP clients: OpenAI's API and Anthropic's messages.");
  options.common.Declare(&parser);
  options.common.DeclareHttp(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Serve(context, std::move(options));
  return code.ok() ? *code : Fail("sluice serve", code.status(), /*json=*/false);
}

}  // namespace sluice::cli
