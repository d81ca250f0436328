// `sluice pull`: downloads a model from a hub.

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/command_line.h"
#include "cli/hub_pull.h"
#include "cli/pack_cache.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

constexpr char kEndpoint[] = "https://huggingface.co";

struct Options {
  std::string repository;
  std::string out;
  std::string endpoint;
  std::string revision = "main";
  bool force = false;
  bool json = false;
  bool quiet = false;
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<PullRequest> RequestOf(const Options& o) {
  PullRequest request{.force = o.force, .quiet = o.quiet};
  const std::pair<std::string, std::string> named = absl::StrSplit(o.repository, absl::MaxSplits(':', 1));
  request.access.repository = named.first;
  request.file = named.second;
  std::string endpoint = o.endpoint.empty() ? FromEnvironment("HF_ENDPOINT") : o.endpoint;
  if (endpoint.empty()) endpoint = kEndpoint;
  request.access.endpoint = std::string(absl::StripSuffix(endpoint, "/"));
  request.access.token = FromEnvironment("HF_TOKEN");
  request.access.revision = o.revision;
  request.folder = o.out;
  if (o.out.empty()) {
    ASSIGN_OR_RETURN(const std::string models, CacheFolder("models"));
    request.folder = absl::StrCat(models, "/", absl::StrReplaceAll(named.first, {{"/", "--"}}));
  }
  return request;
}

absl::StatusOr<int> Run(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const PullRequest request, RequestOf(o));
  const absl::Time start = SteadyNow();
  const absl::StatusOr<PullSummary> pulled = Pull(request, context.interrupt->flag());
  if (absl::IsCancelled(pulled.status())) {
    return absl::CancelledError("interrupted; what came stays, and the same command goes on with it");
  }
  RETURN_IF_ERROR(pulled.status());
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  if (o.json) {
    return PrintJson(Json::Object()
                         .Set("folder", request.folder)
                         .Set("model", pulled->model.empty() ? Json() : Json(pulled->model))
                         .Set("commit", pulled->commit)
                         .Set("files", pulled->files)
                         .Set("bytes", pulled->bytes)
                         .Set("kept", pulled->kept)
                         .Set("seconds", seconds));
  }
  std::string text =
      absl::StrFormat("%s: %d files, %s, every digest checked%s, %.1f s\n", request.folder, pulled->files,
                      FormatSize(pulled->bytes),
                      pulled->kept == 0 ? "" : absl::StrCat("; ", pulled->kept, " were there"), seconds);
  if (!pulled->model.empty()) {
    absl::StrAppend(&text, "sluice run --model ", pulled->model, " --prompt \"Once upon a time\"\n");
  }
  RETURN_IF_ERROR(WriteStdout(text));
  return kExitOk;
}

}  // namespace

int RunPull(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser(
      "sluice pull",
      "Fetches a model from a hub, resumes what was interrupted, and checks every digest. A token is "
      "taken from HF_TOKEN.");
  parser
      .Positional("OWNER/NAME[:FILE]", &options.repository,
                  "a repository; of several GGUF models FILE, or a part of its name as q4_k_m")
      .Text("--out", &options.out, "FOLDER for the files [~/.cache/sluice/models/OWNER--NAME]")
      .Text("--endpoint", &options.endpoint,
            absl::StrCat("URL of the hub [HF_ENDPOINT, else ", kEndpoint, "]"))
      .Text("--revision", &options.revision, "a branch, tag or commit [main]")
      .Flag("--force", &options.force, "replaces files that are not the hub's")
      .Flag("--json", &options.json, "prints one JSON object")
      .Flag("-q,--quiet", &options.quiet, "no progress");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Run(context, options);
  return code.ok() ? *code : Fail("sluice pull", code.status(), options.json);
}

}  // namespace sluice::cli
