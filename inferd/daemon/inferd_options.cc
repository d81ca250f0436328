#include "inferd/daemon/inferd_options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/runtime_dir.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "daemon/grpc_server.h"
#include "daemon/http/metrics_server.h"
#include "daemon/option_declarer.h"
#include "daemon/option_values.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {
namespace {

constexpr int kUsageExit = 2;

void FillDefaults(InferdOptions* options) {
  const std::string dir = RuntimeDirPath();
  if (options->weightd.empty()) {
    options->weightd = absl::StrCat(dir, "/", kWeightdSocketName);
  }
  if (options->listen.empty()) {
    options->listen = {absl::StrCat("unix:", dir, "/", kInferdSocketName)};
  }
  if (options->admin.empty()) {
    options->admin = {absl::StrCat("unix:", dir, "/", kInferdAdminSocketName)};
  }
  // Shown and compared as absolute paths, whatever the daemon's working directory.
  for (std::vector<std::string>* list : {&options->listen, &options->admin, &options->http}) {
    for (std::string& text : *list) {
      if (const absl::StatusOr<ListenAddress> address = ParseListenAddress(text); address.ok()) {
        text = address->ToString();
      }
    }
  }
}

absl::Status CheckAddresses(const InferdOptions& options) {
  for (const std::vector<std::string>* list : {&options.listen, &options.admin}) {
    for (const std::string& text : *list) {
      RETURN_IF_ERROR(ParseListenAddress(text).status());
    }
  }
  RETURN_IF_ERROR(CheckGrpcTls({options.tls_certificate, options.tls_key, options.tls_client_ca}));
  ASSIGN_OR_RETURN(const HttpServerOptions http, HttpOptionsOf(options));
  RETURN_IF_ERROR(CheckHttpOptions(http));
  return options.metrics.empty() ? absl::OkStatus() : CheckMetricsAddress(options.metrics);
}

absl::Status CheckPolicies(const InferdOptions& options) {
  ASSIGN_OR_RETURN(const DeviceKind device, DeviceFromName(options.device));
  const PolicyOverrides overrides = {options.sparsity, options.sparsity_scope, options.sparsity_target,
                                     options.sparsity_threshold, options.policy};
  return PoliciesOf(options.preset, overrides, device).status();
}

KvType KvTypeOf(const std::string& name) {
  return name == "f32" ? KvType::kF32 : name == "q8" ? KvType::kQ8 : KvType::kF16;
}

SpeculateMode SpeculateModeOf(const std::string& name) {
  return name == "off"      ? SpeculateMode::kOff
         : name == "ngram"  ? SpeculateMode::kNgram
         : name == "mtp"    ? SpeculateMode::kMtp
         : name == "stated" ? SpeculateMode::kStated
                            : SpeculateMode::kAuto;
}

SharedHandle SharedHandleOf(const std::string& name) {
  return name == "vmm" ? SharedHandle::kVmm : name == "ipc" ? SharedHandle::kIpc : SharedHandle::kBest;
}

PrefillMath PrefillMathOf(const std::string& name) {
  return name == "fast" ? PrefillMath::kFast : name == "auto" ? PrefillMath::kAuto : PrefillMath::kExact;
}

}  // namespace

InferdCommand ParseInferdCommand(int argc, const char* const* argv) {
  InferdCommand command;
  CLI::App app("inferd: runs a model whose experts weightd holds, and answers clients over gRPC", "inferd");
  app.set_config("--config", "", "TOML file with any of these options", false);
  app.config_formatter(std::make_shared<TomlConfig>(&app));
  app.allow_config_extras(false);
  app.set_version_flag("--version", Version());
  bool check_only = false;
  app.add_flag("--check-config", check_only, "Check the options and end")->configurable(false);
  ForEachOption(&command.options, OptionDeclarer(&app, &command.set));
  app.get_option("--pack")->required();
  try {
    app.parse(argc, argv);
    if (const absl::Status status = CheckInferdOptions(command.options, command.set);
        // An invalid value is a usage error. An unsafe value is reported by the daemon's start, except that
        // --check-config reports both.
        absl::IsInvalidArgument(status) || (check_only && !status.ok())) {
      throw CLI::ValidationError(std::string(status.message()));
    }
    if (check_only) {
      throw CLI::CallForVersion("the options are valid", 0);
    }
  } catch (const CLI::ParseError& error) {
    command.exit_code = app.exit(error) == 0 ? 0 : kUsageExit;
    return command;
  }
  FillDefaults(&command.options);
  return command;
}

absl::Status CheckCpuOf(const std::string& device, bool has_isa) {
  return has_isa || device == "cuda"
             ? absl::OkStatus()
             : absl::FailedPreconditionError(
                   absl::StrCat("this CPU lacks AVX2, FMA or F16C, which device ", device, " needs"));
}

absl::Status CheckInferdOptions(const InferdOptions& options, const SetOptions& set) {
  RETURN_IF_ERROR(CheckOptions(options));
  for (const char* name : {"device-budget", "tile-neurons", "transport", "cpu-threads"}) {
    if (options.device == "host" && set.count(name) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, " is about devices with memory of their own; give --device cuda or sim with it"));
    }
  }
  for (const char* name : {"link-gbps", "link-latency-us", "clock", "virtual-costs"}) {
    if (options.device != "sim" && set.count(name) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is about a modelled device; give --device sim with it"));
    }
  }
  if (options.device != "cuda" && set.count("slab-handle") > 0) {
    return absl::InvalidArgumentError("--slab-handle is about memory of a GPU; give --device cuda with it");
  }
  if (options.device != "cuda" && options.prefill_math == "fast") {
    return absl::InvalidArgumentError(absl::StrCat("--prefill-math fast is about products on a GPU; device ",
                                                   options.device,
                                                   " has exact ones alone: give --device cuda with it"));
  }
  if (options.tile_neurons % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tile-neurons is ", options.tile_neurons, ", not a multiple of 64"));
  }
  if (options.clock == "virtual" && set.count("transport") > 0) {
    return absl::InvalidArgumentError(
        "--transport is about real time; with --clock virtual nobody copies but the modelled link");
  }
  if (!options.virtual_costs.empty() && options.clock != "virtual") {
    return absl::InvalidArgumentError("--virtual-costs needs --clock virtual");
  }
  if (!options.measure_costs.empty() && options.clock == "virtual") {
    return absl::InvalidArgumentError("--measure-costs is about real time; --clock virtual has a table");
  }
  if (!options.prefix_file.empty() && !options.prefix_cache) {
    return absl::InvalidArgumentError("--prefix-file is what --prefix-cache holds, which is off");
  }
  if (options.drafts > 0 && options.speculate == "off") {
    return absl::InvalidArgumentError("--drafts is about --speculate, which is off");
  }
  RETURN_IF_ERROR(ParseVirtualCosts(options.virtual_costs).status());
  RETURN_IF_ERROR(CheckAddresses(options));
  return CheckPolicies(options);
}

EngineOptions EngineOptionsOf(const InferdOptions& options) {
  EngineOptions engine;
  engine.context = options.context;
  engine.parallel = options.parallel;
  engine.kv = KvTypeOf(options.kv);
  engine.kv_budget = options.kv_budget.bytes;
  engine.prefill_chunk = options.prefill_chunk;
  engine.max_prefill_chunk = options.max_prefill_chunk;
  engine.prefix_cache = options.prefix_cache;
  engine.speculate = SpeculateModeOf(options.speculate);
  engine.drafts = options.drafts;
  engine.queue = QueueLimitsOf(options);
  engine.device = DeviceFromName(options.device).value_or(DeviceKind::kHost);  // checked when parsed
  engine.slab = {/*budget=*/0,
                 options.link_gbps,
                 options.link_latency_us,
                 options.tile_neurons,
                 options.transport == "pull" ? Transport::kPull : Transport::kPush,
                 SharedHandleOf(options.slab_handle)};
  engine.prefill_math = PrefillMathOf(options.prefill_math);
  engine.virtual_clock = options.clock == "virtual";
  engine.costs = ParseVirtualCosts(options.virtual_costs).value_or(VirtualCosts());  // checked when parsed
  engine.measure_costs = options.measure_costs;
  engine.preset = options.preset;
  engine.policies = {options.sparsity, options.sparsity_scope, options.sparsity_target,
                     options.sparsity_threshold, options.policy};
  engine.prefetch = options.prefetch;
  engine.trace = options.trace;
  engine.replay_trace = options.replay_trace;
  return engine;
}

QueueLimits QueueLimitsOf(const InferdOptions& options) {
  return {options.max_queue, options.max_queue_tokens, options.max_queue_bytes.bytes};
}

ServingLimits ServingLimitsOf(const InferdOptions& options) {
  ServingLimits limits;
  limits.max_unsent_bytes = options.max_unsent.bytes;
  limits.stall_timeout = options.stall_timeout;
  limits.max_request_time = options.max_request_time;
  return limits;
}

absl::StatusOr<HttpServerOptions> HttpOptionsOf(const InferdOptions& options) {
  HttpServerOptions http;
  for (const std::string& text : options.http) {
    ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(text));
    http.addresses.push_back(std::move(address));
  }
  http.keys_file = options.http_keys;
  http.tls_certificate = options.http_tls_certificate;
  http.tls_key = options.http_tls_key;
  http.cors_origins = options.http_cors;
  http.max_body_bytes = options.http_max_body.bytes;
  http.max_connections = options.http_connections;
  return http;
}

std::vector<ReportedOption> ReportOptionsOf(const InferdOptions& options, const SetOptions& set,
                                            const EnginePlan& plan, uint32_t threads) {
  InferdOptions shown = options;
  shown.context = plan.options.context;
  shown.threads = threads;
  if (const auto policies = PoliciesOf(options.preset, plan.options.policies, plan.options.device);
      policies.ok()) {
    // Shows the values in effect, every policy resolved, not the text typed.
    shown.policy.clear();
    for (const PolicyKey& key : PolicyKeys()) {
      shown.policy.push_back(absl::StrCat(key.name, "=", key.show(*policies)));
    }
    const SparsityConfig& sparsity = policies->sparsity;
    shown.sparsity = SparsityWord(sparsity.order);
    shown.sparsity_target = sparsity.target.value_or(-1);
    shown.sparsity_threshold = sparsity.threshold.value_or(-1);
    shown.sparsity_scope = !sparsity.target.has_value()               ? ""
                           : sparsity.scope == ThresholdScope::kModel ? "model"
                                                                      : "expert";
  }
  if (plan.options.virtual_clock && options.virtual_costs.empty()) {
    shown.virtual_costs = ShowVirtualCosts(plan.options.costs);
  }
  if (shown.kv_budget.bytes == 0) {
    shown.kv_budget.bytes = plan.kv_bytes;
  }
  std::vector<ReportedOption> report;
  ForEachOption(&shown, [&](const OptionSpec& spec, const auto* member) {
    report.push_back({spec.name, FormatOptionValue(*member), set.count(spec.name) > 0});
  });
  return report;
}

}  // namespace sluice::inferd
