// `sluice serve`: runs both daemons, with inferd's HTTP server open, until Ctrl-C. With several models:
// weightd, and an inferd for each model that is in use, behind one HTTP and one gRPC server (cli/router).

#include <poll.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/output_files.h"
#include "cli/router/model_router.h"
#include "cli/router/model_set.h"
#include "cli/runtime_paths.h"
#include "common/base/listen_address.h"
#include "common/base/runtime_dir.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:8080";
constexpr int kLookEveryMs = 200;
// The supervisor restarts a lost inferd within this time; a longer absence is a failure.
constexpr absl::Duration kPatience = absl::Seconds(30);
// Wait for daemons of this directory that are just ending.
constexpr absl::Duration kLockPatience = absl::Seconds(10);

struct Options {
  CommonOptions common;
};

// Returns an address that programs on this machine can use: a listener may name all of its addresses.
std::string Reachable(const std::string& address) {
  for (const auto& [any, local] : {std::pair{"0.0.0.0:", "127.0.0.1:"}, std::pair{"[::]:", "[::1]:"}}) {
    if (absl::StartsWith(address, any)) {
      return absl::StrCat(local, absl::StripPrefix(address, any));
    }
  }
  return address;
}

// Quotes a word for a shell.
std::string Quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out + "'";
}

// Returns a curl command for one answer, ready to be pasted.
std::string CurlLine(const std::string& address, const CommonOptions& options) {
  std::vector<std::string> words = {"curl"};
  std::string base;
  if (absl::StartsWith(address, "unix:")) {
    words.insert(words.end(), {"--unix-socket", Quoted(address.substr(5))});
    base = "http://localhost";
  } else {
    base = absl::StrCat(options.Has("http-tls-certificate") ? "https://" : "http://", Reachable(address));
    if (options.Has("http-keys")) {
      words.push_back("-H \"Authorization: Bearer $KEY\"");
    }
  }
  words.push_back(absl::StrCat(base, "/v1/chat/completions"));
  words.push_back("-H 'Content-Type: application/json'");
  words.push_back(
      R"(-d '{"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 48}')");
  return absl::StrJoin(words, " ");
}

// Returns the value of a budget of either daemon; none if it is not known.
std::optional<uint64_t> Budget(const Launcher& launcher, const std::string& name) {
  uint64_t bytes = 0;
  const bool known = absl::SimpleAtoi(launcher.server_option(name), &bytes);
  return known ? std::optional(bytes) : std::nullopt;
}

// Describes the daemons' memory by part; budgets are upper limits, not current use.
std::string MemoryLine(const Launcher& launcher) {
  const api::Model& model = launcher.model();
  std::vector<std::string> parts;
  if (const auto dram = Budget(launcher, "dram-budget"); dram.has_value()) {
    parts.push_back(absl::StrCat("weights in DRAM up to ", FormatSize(*dram), " of ",
                                 FormatSize(model.expert_bytes() + model.dense_bytes()), " (of these ",
                                 FormatSize(model.dense_bytes()), " always)"));
  }
  const bool own_memory =
      !launcher.server_option("device").empty() && launcher.server_option("device") != "host";
  if (const auto device = Budget(launcher, "device-budget"); device.has_value() && own_memory) {
    parts.push_back(absl::StrCat("experts on the device ", FormatSize(*device)));
  }
  if (const auto kv = Budget(launcher, "kv-budget"); kv.has_value()) {
    parts.push_back(absl::StrCat("KV cache ", FormatSize(*kv), " for ", launcher.server_option("parallel"),
                                 " answers of ", model.context_tokens(), " tokens"));
  }
  return absl::StrJoin(parts, ", ");
}

void ShowAddresses(const std::vector<std::string>& addresses, const CommonOptions& options) {
  const char* scheme = options.Has("http-tls-certificate") ? "https" : "http";
  for (const std::string& address : addresses) {
    if (absl::StartsWith(address, "unix:")) {
      std::fprintf(stderr, "  API     %s\n", address.c_str());
    } else {
      std::fprintf(stderr, "  page    %s://%s/\n  API     %s://%s/v1\n", scheme, Reachable(address).c_str(),
                   scheme, Reachable(address).c_str());
    }
  }
}

void ShowServer(const Launcher& launcher, const CommonOptions& options) {
  const api::Model& model = launcher.model();
  std::fprintf(stderr, "sluice: serving %s (%s, %u layers of %u experts); Ctrl-C ends it\n",
               model.name().c_str(), model.family().c_str(), model.layers(), model.experts_per_layer());
  ShowAddresses(options.All("http"), options);
  if (const std::string memory = MemoryLine(launcher); !memory.empty()) {
    std::fprintf(stderr, "  memory  %s\n", memory.c_str());
  }
  std::fprintf(stderr, "  try     %s\n", CurlLine(options.All("http").front(), options).c_str());
}

void ShowModels(const RouterOptions& router) {
  std::fprintf(stderr, "sluice: serving %zu models, each from its first request on; Ctrl-C ends it\n",
               router.models.size());
  for (const RoutedModel& model : router.models) {
    std::fprintf(stderr, "  model   %s (%s, %s of weights; %s beside them)\n", model.served.name.c_str(),
                 model.served.family.c_str(), FormatSize(model.bytes).c_str(),
                 FormatSize(model.need.memory).c_str());
  }
  std::fprintf(stderr, "  memory  weights in DRAM up to %s, loaded models up to %s beside them\n",
               FormatSize(router.budget.reserved).c_str(), FormatSize(router.budget.memory).c_str());
}

// Serves several models. This process owns the daemons of its runtime directory, in place of a supervisor.
absl::StatusOr<int> ServeSeveral(const CommandContext& context, const CommonOptions& common,
                                 std::vector<std::string> packs) {
  ASSIGN_OR_RETURN(const std::string dir, EnsureRuntimeDir());
  const RuntimePaths paths(dir);
  const auto say = [&](const std::string& holder) {
    std::fprintf(stderr, "sluice: waiting for %s, which has daemons in %s\n", holder.c_str(), dir.c_str());
  };
  std::vector<UniqueFd> locks;
  for (const std::string& path : {paths.models_lock, paths.supervisor_lock}) {
    absl::StatusOr<UniqueFd> lock = LockFile(path, kLockPatience, context.interrupt->flag(), say);
    RETURN_IF_ERROR(Annotate(
        lock.status(),
        absl::StrCat("daemons run in ", dir, " already: end them, or take another SLUICE_RUNTIME_DIR")));
    locks.push_back(*std::move(lock));
  }
  ASSIGN_OR_RETURN(RouterOptions options, PlanRouter({std::move(packs), dir, context.binary_dir}, common));
  if (!common.quiet) {
    ShowModels(options);
    options.log = [](const std::string& text) { std::fprintf(stderr, "sluice: %s\n", text.c_str()); };
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelRouter> router, ModelRouter::Start(std::move(options)));
  std::vector<std::string> addresses;
  for (const ListenAddress& address : router->addresses()) {
    addresses.push_back(address.ToString());
  }
  ShowAddresses(addresses, common);
  for (const ListenAddress& address : router->grpc_addresses()) {
    std::fprintf(stderr, "  gRPC    %s\n", address.ToString().c_str());
  }
  while (!context.interrupt->requested()) {
    RETURN_IF_ERROR(router->status());
    poll(nullptr, 0, kLookEveryMs);
  }
  router->Shutdown();
  return kExitOk;
}

absl::StatusOr<int> Serve(const CommandContext& context, Options options) {
  CommonOptions& common = options.common;
  if (!common.Has("http")) {
    common.Set("http", kDefaultAddress);
  }
  // The daemons run in another working directory, so relative paths are made absolute.
  for (const char* file : {"http-keys", "http-tls-certificate", "http-tls-key", "tls-certificate", "tls-key",
                           "tls-client-ca", "prefix-file"}) {
    if (common.Has(file)) {
      common.Set(file, std::filesystem::absolute(common.ValueOr(file, "")).string());
    }
  }
  ASSIGN_OR_RETURN(std::vector<std::string> packs, PacksOf(context, common));
  if (packs.size() > 1 || !common.several.folder.empty()) {
    return ServeSeveral(context, common, std::move(packs));
  }
  common.pack = packs.front();
  common.bits.reset();  // the pack is made
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher,
                   Launcher::Launch(context, common, /*json=*/false));
  ShowServer(*launcher, common);
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
  ArgParser parser(
      "sluice serve",
      "Serves models to HTTP clients: OpenAI's API and Anthropic's messages, and a page for browsers.");
  options.common.DeclareSeveral(&parser);
  options.common.DeclareServe(&parser);
  options.common.self_test = true;
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const SeveralModels& given = options.common.several;
  if (given.models.empty() && given.packs.empty() && given.folder.empty()) {
    return parser.UsageError("one of --model, --pack and --models is required");
  }
  const absl::StatusOr<int> code = Serve(context, std::move(options));
  // Clients are answered a moment before the start is complete, and a signal then ends a server as later.
  if (absl::IsCancelled(code.status()) && context.interrupt->requested()) {
    return kExitOk;
  }
  return code.ok() ? *code : Fail("sluice serve", code.status(), /*json=*/false);
}

}  // namespace sluice::cli
