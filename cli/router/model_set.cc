#include "cli/router/model_set.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/model_facts.h"
#include "cli/pack_cache.h"
#include "cli/plan.h"
#include "cli/runtime_paths.h"
#include "common/base/listen_address.h"
#include "common/base/machine_facts.h"
#include "common/base/status.h"
#include "daemon/inferd_option_table.h"
#include "inferd/forward/engine_options.h"
#include "inferd/policy/policies.h"
#include "pack/pack.h"
#include "weightd/store/memory_budget.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// Bytes of an inferd besides its caches and activations: code, tokenizer, tables.
constexpr uint64_t kInferdReserve = 64ull << 20;
constexpr absl::Duration kDefaultIdle = absl::Minutes(10);

// Options of the one HTTP server and the one gRPC server, which no inferd gets.
bool IsOfServer(const std::string& name) {
  return absl::StartsWith(name, "http") || absl::StartsWith(name, "tls-") || name == "listen";
}

absl::Status CheckOptions(const CommonOptions& options) {
  for (const char* name : {"trace", "replay-trace"}) {
    if (options.Has(name)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is for one model"));
    }
  }
  if (options.address.has_value() || options.admin.has_value() || options.keep.has_value()) {
    return absl::InvalidArgumentError(
        "--address, --admin and --keep are for one model: several are served by daemons of their own");
  }
  return absl::OkStatus();
}

// inferd's options as given.
absl::StatusOr<inferd::InferdOptions> ReadInferdOptions(const CommonOptions& options) {
  inferd::InferdOptions read;
  absl::Status status;
  inferd::ForEachOption(&read, [&]<typename T>(const OptionSpec& spec, T* member) {
    if constexpr (requires { ParseOptionValue(std::string(), member); }) {  // not repeated
      if (options.Has(spec.name)) {
        status.Update(ParseOptionValue(options.ValueOr(spec.name, ""), member));
      }
    }
  });
  RETURN_IF_ERROR(status);
  return read;
}

absl::StatusOr<MemoryRequest> RequestOf(const inferd::InferdOptions& given, uint32_t threads) {
  MemoryRequest request;
  request.threads = threads;
  request.dram_budget = 0;  // planned for all packs together
  request.device_budget = given.device_budget.bytes;
  ASSIGN_OR_RETURN(request.engine.device, inferd::DeviceFromName(given.device));
  request.engine.context = given.context;
  request.engine.parallel = given.parallel;
  request.engine.kv = given.kv == "f32" ? KvType::kF32 : given.kv == "q8" ? KvType::kQ8 : KvType::kF16;
  request.engine.kv_budget = given.kv_budget.bytes;
  request.engine.prefill_chunk = given.prefill_chunk;
  return request;
}

// Bytes that lie on a device with memory of its own, besides KV cache and activations.
uint64_t DeviceWeights(const inferd::InferdOptions& given, const StoredSizes& sizes, uint64_t beside) {
  if (given.device == "host") return 0;
  if (given.device_budget.percent > 0) {
    return sizes.weights.dense +
           static_cast<uint64_t>(given.device_budget.percent / 100 * static_cast<double>(sizes.experts()));
  }
  return given.device_budget.bytes == 0
             ? sizes.weights.all
             : given.device_budget.bytes - std::min(given.device_budget.bytes, beside);
}

absl::StatusOr<RoutedModel> DescribeModel(const std::string& dir, const inferd::InferdOptions& given,
                                          uint32_t threads) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  ASSIGN_OR_RETURN(const ModelFacts facts, ReadModelFacts(dir, {}));
  ASSIGN_OR_RETURN(const MemoryRequest request, RequestOf(given, threads));
  const absl::StatusOr<MemoryPlan> planned = PlanMemory(facts.config, facts.stored.front(), request);
  RETURN_IF_ERROR(Annotate(planned.status(), facts.name));
  const MemoryPlan& plan = *planned;
  const uint64_t caches = plan.kv + plan.activations;
  RoutedModel model;
  model.served = inferd::DescribeModel(*pack, dir, plan.context);
  ASSIGN_OR_RETURN(const TokenizerFiles tokenizer, pack->ReadTokenizerFiles());
  model.has_tokenizer = !tokenizer.empty();
  model.bytes = facts.stored.front().weights.all;
  model.need.memory = caches + DeviceWeights(given, facts.stored.front(), caches) + kInferdReserve;
  model.need.reserved = plan.least_budget;
  return model;
}

// Two models of one name could not be told apart by requests; weightd holds one pack of an id.
absl::Status CheckDistinct(const std::vector<RoutedModel>& models, const std::vector<std::string>& packs) {
  for (size_t i = 0; i < models.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (models[i].served.name == models[j].served.name || models[i].served.id == models[j].served.id) {
        return absl::InvalidArgumentError(absl::StrCat(packs[j], " and ", packs[i], " have the same ",
                                                       models[i].served.name == models[j].served.name
                                                           ? "name: rename a folder"
                                                           : "weights: serve one of them"));
      }
    }
  }
  return absl::OkStatus();
}

// Folder of the model's sockets and log: its name might be too long for a socket's path.
absl::Status PlanInferd(const SetRequest& request, const CommonOptions& options, size_t number,
                        RoutedModel* model) {
  const std::string dir = absl::StrCat(request.runtime_dir, "/models/", number);
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot make ", dir));
  }
  const RuntimePaths paths(dir);
  model->http_socket = absl::StrCat(dir, "/http.sock");
  model->grpc_socket = paths.inferd_socket;
  RETURN_IF_ERROR(ParseListenAddress(absl::StrCat("unix:", paths.inferd_admin_socket)).status());
  std::vector<std::string> argv = {
      absl::StrCat(request.binary_dir, "/inferd"), "--pack", request.packs[number], "--weightd",
      RuntimePaths(request.runtime_dir).weightd_socket, "--listen",
      absl::StrCat("unix:", paths.inferd_socket), "--admin", absl::StrCat("unix:", paths.inferd_admin_socket),
      "--http", absl::StrCat("unix:", model->http_socket),
      // A model is loaded for a request that waits: that request is the test.
      "--self-test", "off"};
  for (OptionText setting : options.InferdSettings()) {
    if (IsOfServer(setting.name)) continue;
    if (setting.name == "prefix-file") {
      absl::StrAppend(&setting.value, ".", model->served.id.substr(0, 12));  // one file of each model
    }
    argv.insert(argv.end(), {absl::StrCat("--", setting.name), setting.value});
  }
  model->inferd = {absl::StrCat("inferd of ", model->served.name), std::move(argv), paths.inferd_log,
                   /*new_session=*/true};
  return absl::OkStatus();
}

DaemonCommand PlanWeightd(const SetRequest& request, const CommonOptions& options, uint64_t dram_budget) {
  const RuntimePaths paths(request.runtime_dir);
  std::vector<std::string> argv = {absl::StrCat(request.binary_dir, "/weightd"), "--socket",
                                   paths.weightd_socket};
  for (const std::string& pack : request.packs) {
    argv.insert(argv.end(), {"--pack", pack});
  }
  for (const OptionText& setting : options.WeightdSettings()) {
    if (setting.name != "dram-budget") {
      argv.insert(argv.end(), {absl::StrCat("--", setting.name), setting.value});
    }
  }
  argv.insert(argv.end(), {"--dram-budget", absl::StrCat(dram_budget)});
  return {"weightd", std::move(argv), paths.weightd_log, /*new_session=*/true};
}

absl::StatusOr<uint64_t> DramBudget(const SetRequest& request, const CommonOptions& options, uint32_t threads,
                                    uint64_t usable) {
  if (options.Has("dram-budget")) {
    ByteSize given;
    RETURN_IF_ERROR(ParseOptionValue(options.ValueOr("dram-budget", ""), &given));
    return given.bytes;
  }
  std::vector<std::unique_ptr<Pack>> packs;
  std::vector<const Pack*> borrowed;
  for (const std::string& dir : request.packs) {
    ASSIGN_OR_RETURN(packs.emplace_back(), Pack::Open(dir));
    borrowed.push_back(packs.back().get());
  }
  return weightd::DefaultDramBudget(borrowed, threads, usable);
}

// The budget of inferds' memory. `models`: on a GPU, whose memory is not known here, each is taken to need
// all of it.
uint64_t ModelsBudget(const CommonOptions& options, const std::string& device, uint64_t rest,
                      std::vector<RoutedModel>* models) {
  if (options.several.budget.has_value()) {
    return *options.several.budget;
  }
  uint64_t largest = 0;
  for (const RoutedModel& model : *models) {
    largest = std::max(largest, model.need.memory);
  }
  if (device != "cuda") {
    return std::max(rest, largest);  // one model is always loaded, as by `serve` of that model alone
  }
  for (RoutedModel& model : *models) {
    model.need.memory = largest;
  }
  return largest;
}

absl::StatusOr<HttpServerOptions> HttpOptions(const CommonOptions& options) {
  HttpServerOptions http;
  for (const std::string& address : options.All("http")) {
    ASSIGN_OR_RETURN(http.addresses.emplace_back(), ParseListenAddress(address));
  }
  http.keys_file = options.ValueOr("http-keys", "");
  http.tls_certificate = options.ValueOr("http-tls-certificate", "");
  http.tls_key = options.ValueOr("http-tls-key", "");
  http.cors_origins = options.All("http-cors");
  RETURN_IF_ERROR(CheckHttpOptions(http));
  return http;
}

absl::StatusOr<GrpcServerOptions> GrpcOptions(const RuntimePaths& paths, const CommonOptions& options) {
  GrpcServerOptions grpc;
  std::vector<std::string> addresses = options.All("listen");
  addresses.insert(addresses.begin(), absl::StrCat("unix:", paths.inferd_socket));
  for (const std::string& address : addresses) {
    ASSIGN_OR_RETURN(grpc.addresses.emplace_back(), ParseListenAddress(address));
  }
  grpc.tls = {options.ValueOr("tls-certificate", ""), options.ValueOr("tls-key", ""),
              options.ValueOr("tls-client-ca", "")};
  RETURN_IF_ERROR(CheckGrpcTls(grpc.tls));
  return grpc;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PacksIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> packs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (fs::exists(entry.path() / kManifestName, ignored)) {
      packs.push_back(entry.path().string());
    }
  }
  if (error) {
    return ErrnoToStatus(error.value(), absl::StrCat("--models ", folder));
  }
  if (packs.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--models ", folder, ": there is no pack in it (folders that `sluice pack` writes)"));
  }
  std::sort(packs.begin(), packs.end());
  return packs;
}

absl::StatusOr<std::vector<std::string>> PacksOf(const CommandContext& context,
                                                 const CommonOptions& options) {
  if (options.several.models.empty() && options.bits.has_value()) {
    return absl::InvalidArgumentError("--bits is for a --model that is packed, not for a --pack");
  }
  std::vector<std::string> packs;
  for (const std::string& model : options.several.models) {
    ASSIGN_OR_RETURN(packs.emplace_back(), PackOf(context, {model, options.bits, options.quiet}));
  }
  packs.insert(packs.end(), options.several.packs.begin(), options.several.packs.end());
  if (!options.several.folder.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> found, PacksIn(options.several.folder));
    packs.insert(packs.end(), found.begin(), found.end());
  }
  for (std::string& pack : packs) {
    std::error_code error;
    const fs::path canonical = fs::canonical(pack, error);
    if (error) {
      return ErrnoToStatus(error.value(), absl::StrCat("cannot resolve ", pack));
    }
    pack = canonical.string();
  }
  return packs;
}

absl::StatusOr<RouterOptions> PlanRouter(const SetRequest& request, const CommonOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const inferd::InferdOptions given, ReadInferdOptions(options));
  const uint32_t threads =
      given.threads > 0 ? given.threads : std::max<uint32_t>(1, static_cast<uint32_t>(AllowedCpus().size()));
  RouterOptions router;
  ASSIGN_OR_RETURN(router.http, HttpOptions(options));
  ASSIGN_OR_RETURN(router.grpc, GrpcOptions(RuntimePaths(request.runtime_dir), options));
  for (const std::string& pack : request.packs) {
    ASSIGN_OR_RETURN(router.models.emplace_back(), DescribeModel(pack, given, threads));
  }
  RETURN_IF_ERROR(CheckDistinct(router.models, request.packs));
  for (size_t i = 0; i < router.models.size(); ++i) {
    RETURN_IF_ERROR(PlanInferd(request, options, i, &router.models[i]));
  }
  ASSIGN_OR_RETURN(const MemoryFacts facts, ReadMemoryFacts());
  const uint64_t usable = UsableMemory(facts);
  ASSIGN_OR_RETURN(router.budget.reserved, DramBudget(request, options, threads, usable));
  const uint64_t rest = usable - std::min(usable, router.budget.reserved);
  router.budget.memory = ModelsBudget(options, given.device, rest, &router.models);
  router.weightd = PlanWeightd(request, options, router.budget.reserved);
  const absl::Duration idle = options.several.idle_unload.value_or(kDefaultIdle);
  router.idle = idle > absl::ZeroDuration() ? idle : absl::InfiniteDuration();
  router.restart = !options.no_restart;
  return router;
}

}  // namespace sluice::cli
