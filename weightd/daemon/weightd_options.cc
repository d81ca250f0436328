#include "weightd/daemon/weightd_options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/runtime_dir.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "daemon/http/metrics_server.h"
#include "daemon/option_declarer.h"
#include "daemon/option_values.h"

namespace sluice::weightd {
namespace {

constexpr int kUsageExit = 2;

void FillDefaults(WeightdOptions* options) {
  if (options->socket.empty()) {
    options->socket = RuntimeDirPath() + "/" + kWeightdSocketName;
  }
  options->socket = AbsoluteSocketPath(options->socket);
}

}  // namespace

WeightdCommand ParseWeightdCommand(int argc, const char* const* argv) {
  WeightdCommand command;
  CLI::App app("weightd: keeps packs' weights in memory and serves them to inferd", "weightd");
  app.set_config("--config", "", "TOML file with any of these options", false);
  app.config_formatter(std::make_shared<TomlConfig>(&app));
  app.allow_config_extras(false);
  app.set_version_flag("--version", Version());
  bool check_only = false;
  app.add_flag("--check-config", check_only, "Check the options and end")->configurable(false);
  std::set<std::string> set;
  ForEachOption(&command.options, OptionDeclarer(&app, &set));
  app.get_option("--pack")->required();
  try {
    app.parse(argc, argv);
    FillDefaults(&command.options);
    if (const absl::Status status = CheckWeightdOptions(command.options); !status.ok()) {
      throw CLI::ValidationError(std::string(status.message()));
    }
    if (check_only) {
      throw CLI::CallForVersion("the options are valid", 0);
    }
  } catch (const CLI::ParseError& error) {
    command.exit_code = app.exit(error) == 0 ? 0 : kUsageExit;
  }
  return command;
}

absl::Status CheckWeightdOptions(const WeightdOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  // The longer of both paths.
  if (const absl::Status side = ParseListenAddress(absl::StrCat("unix:", options.socket, ".side")).status();
      !options.socket.empty() && !side.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--socket: ", side.message()));
  }
  if (!options.metrics.empty()) {
    RETURN_IF_ERROR(CheckMetricsAddress(options.metrics));
  }
  return absl::OkStatus();
}

}  // namespace sluice::weightd
