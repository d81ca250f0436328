#include "inferd/inferd_options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/error_detail.h"
#include "common/runtime_dir.h"
#include "common/size.h"
#include "common/status.h"
#include "inferd/policy/policy_keys.h"

namespace sluice {
namespace {

constexpr int kUsageExit = 2;

// One overload pair for each type of the table: a text to a value, a value to the text that gives it back.

absl::Status ParseValue(const std::string& text, std::string* value) {
  *value = text;
  return absl::OkStatus();
}
std::string ShowValue(const std::string& value) { return value; }

template <typename Number>
absl::Status ParseNumber(const std::string& text, Number* value) {
  if (text.empty() || !absl::SimpleAtoi(text, value)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number that fits"));
  }
  return absl::OkStatus();
}
absl::Status ParseValue(const std::string& text, uint32_t* value) { return ParseNumber(text, value); }
absl::Status ParseValue(const std::string& text, int* value) { return ParseNumber(text, value); }
std::string ShowValue(uint32_t value) { return absl::StrCat(value); }
std::string ShowValue(int value) { return absl::StrCat(value); }

absl::Status ParseValue(const std::string& text, double* value) {
  if (!absl::SimpleAtod(text, value) || !std::isfinite(*value) || *value < 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number of 0 or more"));
  }
  return absl::OkStatus();
}
std::string ShowValue(double value) { return value < 0 ? "" : absl::StrCat(value); }

absl::Status ParseValue(const std::string& text, bool* value) {
  if (text != "on" && text != "off") {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither on nor off"));
  }
  *value = text == "on";
  return absl::OkStatus();
}
std::string ShowValue(bool value) { return value ? "on" : "off"; }

absl::Status ParseValue(const std::string& text, ByteSize* value) {
  ASSIGN_OR_RETURN(value->bytes, ParseSize(text));
  return absl::OkStatus();
}
std::string ShowValue(ByteSize value) { return absl::StrCat(value.bytes); }

absl::Status ParseValue(const std::string& text, absl::Duration* value) {
  ASSIGN_OR_RETURN(*value, ParseTimeSpan(text));
  return absl::OkStatus();
}
std::string ShowValue(absl::Duration value) { return FormatTimeSpan(value); }

template <typename T>
std::string ShowValue(const std::vector<T>& values) {
  return absl::StrJoin(values, ",");
}

// Adds the table's options to a CLI11 parser, which reports by exceptions of its own (ParseInferdCommand
// catches them), and remembers which were set, by flag or file.
class Declarer {
 public:
  Declarer(CLI::App* app, SetOptions* set) : app_(app), set_(set) {}

  template <typename T>
  void operator()(const char* name, T* member, const char* help) {
    app_->add_option_function<std::string>(
            absl::StrCat("--", name),
            [name, member, set = set_](const std::string& text) {
              Check(name, ParseValue(text, member));
              set->insert(name);
            },
            help)
        ->type_name("")
        ->default_str(HasPlainDefault(*member) ? ShowValue(*member) : "");
  }
  template <typename T>
  void operator()(const char* name, std::vector<T>* member, const char* help) {
    app_->add_option_function<std::vector<std::string>>(
            absl::StrCat("--", name),
            [name, member, set = set_](const std::vector<std::string>& texts) {
              member->clear();
              for (const std::string& text : texts) {
                Check(name, ParseValue(text, &member->emplace_back()));
              }
              set->insert(name);
            },
            help)
        ->type_name("");
  }

 private:
  // Zero stands for a default that is computed; the help names it.
  static bool HasPlainDefault(const std::string& value) { return !value.empty(); }
  static bool HasPlainDefault(ByteSize value) { return value.bytes != 0; }
  static bool HasPlainDefault(uint32_t value) { return value != 0; }
  static bool HasPlainDefault(int value) { return value >= 0; }
  static bool HasPlainDefault(double value) { return value > 0; }
  static bool HasPlainDefault(bool) { return true; }
  static bool HasPlainDefault(absl::Duration) { return true; }

  static void Check(const char* name, const absl::Status& status) {
    if (!status.ok()) {
      throw CLI::ValidationError(absl::StrCat("--", name), std::string(status.message()));
    }
  }

  CLI::App* const app_;
  SetOptions* const set_;
};

absl::Status OneOf(const char* name, const std::string& value, const std::vector<std::string>& allowed) {
  for (const std::string& a : allowed) {
    if (value == a) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", value, "\", must be one of ", absl::StrJoin(allowed, ", ")));
}

absl::Status Missing(const std::string& message) {
  return ReasonError(absl::StatusCode::kUnimplemented, "NOT_IN_THIS_BUILD", message);
}

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
}

KvType KvTypeOf(const std::string& name) {
  return name == "f32" ? KvType::kF32 : name == "q8" ? KvType::kQ8 : KvType::kF16;
}

}  // namespace

InferdCommand ParseInferdCommand(int argc, const char* const* argv) {
  InferdCommand command;
  CLI::App app("inferd: runs a model whose experts weightd holds, and answers clients over gRPC", "inferd");
  app.set_config("--config", "", "TOML file with any of these options", false);
  app.allow_config_extras(false);
  app.set_version_flag("--version", SLUICE_VERSION);
  ForEachOption(&command.options, Declarer(&app, &command.set));
  app.get_option("--pack")->required();
  try {
    app.parse(argc, argv);
    if (const absl::Status status = CheckInferdOptions(command.options, command.set);
        absl::IsInvalidArgument(status)) {
      throw CLI::ValidationError(std::string(status.message()));
    }
  } catch (const CLI::ParseError& error) {
    command.exit_code = app.exit(error) == 0 ? 0 : kUsageExit;
    return command;
  }
  FillDefaults(&command.options);
  return command;
}

absl::Status CheckInferdOptions(const InferdOptions& options, const SetOptions& set) {
  RETURN_IF_ERROR(OneOf("device", options.device, {"host", "sim", "cuda"}));
  RETURN_IF_ERROR(OneOf("kv", options.kv, {"f32", "f16", "q8"}));
  RETURN_IF_ERROR(OneOf("clock", options.clock, {"real", "virtual"}));
  RETURN_IF_ERROR(OneOf("log-level", options.log_level, {"debug", "info", "warning", "error"}));
  if (options.device == "cuda") {
    return Missing("--device cuda: this build has no CUDA device; use --device host");
  }
  if (options.device == "sim") {
    return Missing("--device sim: this build has no simulated device yet; use --device host");
  }
  for (const char* name : {"device-budget", "link-gbps", "link-latency-us", "clock"}) {
    if (set.count(name) > 0) {
      return Missing(
          absl::StrCat("--", name, " is about the devices sim and cuda, which this build has not"));
    }
  }
  return absl::OkStatus();
}

EngineOptions EngineOptionsOf(const InferdOptions& options) {
  EngineOptions engine;
  engine.context = options.context;
  engine.parallel = options.parallel;
  engine.kv = KvTypeOf(options.kv);
  engine.kv_budget = options.kv_budget.bytes;
  engine.prefill_chunk = options.prefill_chunk;
  engine.queue.count = options.max_queue;
  engine.queue.tokens = options.max_queue_tokens;
  engine.queue.bytes = options.max_queue_bytes.bytes;
  engine.device = DeviceFromName(options.device).value_or(DeviceKind::kHost);  // checked when parsed
  engine.preset = options.preset;
  engine.policies = {options.sparsity, options.sparsity_scope, options.sparsity_target,
                     options.sparsity_threshold, options.policy};
  engine.prefetch = options.prefetch;
  return engine;
}

ServingLimits ServingLimitsOf(const InferdOptions& options) {
  ServingLimits limits;
  limits.max_unsent_bytes = options.max_unsent.bytes;
  limits.stall_timeout = options.stall_timeout;
  limits.max_request_time = options.max_request_time;
  return limits;
}

std::vector<ReportedOption> ReportOptionsOf(const InferdOptions& options, const SetOptions& set,
                                            const EnginePlan& plan, uint32_t threads) {
  InferdOptions shown = options;
  shown.context = plan.options.context;
  shown.threads = threads;
  if (const auto policies = PoliciesOf(options.preset, plan.options.policies, plan.options.device);
      policies.ok()) {
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
  if (shown.kv_budget.bytes == 0) {
    shown.kv_budget.bytes = plan.kv_bytes;
  }
  std::vector<ReportedOption> report;
  ForEachOption(&shown, [&](const char* name, const auto* member, const char*) {
    report.push_back({name, ShowValue(*member), set.count(name) > 0});
  });
  return report;
}

}  // namespace sluice
