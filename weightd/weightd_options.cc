#include "weightd/weightd_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <system_error>

#include "common/runtime_dir.h"
#include "common/size.h"

namespace sluice {
namespace {

constexpr int kUsageExit = 2;

// Options that are texts on the command line and something else behind it. CLI11 reports by exceptions of its
// own, which ParseWeightdCommand catches.
template <typename Parse, typename T>
std::function<void(const std::string&)> Parsed(const char* name, Parse parse, T* target) {
  return [name, parse, target](const std::string& text) {
    const auto value = parse(text);
    if (!value.ok()) {
      throw CLI::ValidationError(name, std::string(value.status().message()));
    }
    *target = *value;
  };
}

void ServingOptions(CLI::App* app, WeightdOptions* options) {
  app->add_option("--socket", options->socket, "Unix socket to serve on; side channel beside it (.side)")
      ->default_str("weightd.sock in the runtime directory");
  app->add_option("--pack", options->packs, "Pack to serve; repeat for more")->required();
  app->add_option("--allow-uid", options->allowed_uids, "User who may connect, beside this one and root");
  app->add_option_function<std::string>(
         "--socket-mode",
         [options](const std::string& text) {
           options->socket_mode = static_cast<mode_t>(std::stoul(text, nullptr, 8));
         },
         "Mode of the socket files, octal")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool octal =
                !text.empty() && text.size() <= 4 && text.find_first_not_of("01234567") == std::string::npos;
            return octal ? std::string() : "is no octal mode: " + text;
          },
          "MODE"))
      ->default_str("0600");
}

void StorageOptions(CLI::App* app, WeightdOptions* options) {
  app->add_option_function<std::string>("--dram-budget",
                                        Parsed("--dram-budget", ParseSize, &options->dram_budget),
                                        "Memory for weights, as 512MiB or 2GB")
      ->default_str("the packs, at most 70 % of what is available");
  app->add_option("--io", options->io,
                  "Engine that reads packs: uring, or pread, which stands in where io_uring is refused")
      ->check(CLI::IsMember({"uring", "pread"}))
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--direct", [options](const std::string& text) { options->direct = text == "on"; },
         "Read past the page cache")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
  app->add_option_function<std::string>(
         "--eviction",
         [options](const std::string& text) {
           options->eviction = ParseEviction(text).value_or(EvictionKind::kLru);
         },
         "Which weights leave memory first: lru, lfru or score")
      ->check(CLI::IsMember({"lru", "lfru", "score"}))
      ->default_str("lru");
  app->add_option_function<std::string>(
         "--admission", [options](const std::string& text) { options->admission = text == "on"; },
         "Keep what is used again and again from one long prefill")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
  app->add_option_function<std::string>("--session-quota",
                                        Parsed("--session-quota", ParseSize, &options->session_quota),
                                        "Memory that one session may fill; beyond it its own coldest goes")
      ->default_str("no bound");
  app->add_option("--threads", options->reader_threads, "Threads of the pread engine")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
}

void LifeOptions(CLI::App* app, WeightdOptions* options) {
  app->add_option_function<std::string>("--budget-wait",
                                        Parsed("--budget-wait", ParseTimeSpan, &options->budget_wait),
                                        "Wait so long for the memory to be free, as 10s")
      ->default_str("10s");
  app->add_option_function<std::string>("--drain-timeout",
                                        Parsed("--drain-timeout", ParseTimeSpan, &options->drain_timeout),
                                        "On SIGTERM wait so long for sessions to end")
      ->default_str("2s");
  app->add_option("--parent-lifeline", options->parent_lifeline,
                  "Inherited descriptor at whose end weightd ends");
  app->add_option_function<std::string>("--keep", Parsed("--keep", ParseTimeSpan, &options->keep),
                                        "Stay so long after that")
      ->default_str("0s");
  app->add_option("--log-level", options->log_level, "Least severity that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

void FillDefaults(WeightdOptions* options) {
  if (options->socket.empty()) {
    options->socket = RuntimeDirPath() + "/" + kWeightdSocketName;
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(options->socket, error);
  options->socket = error ? options->socket : absolute.lexically_normal().string();
}

}  // namespace

WeightdCommand ParseWeightdCommand(int argc, const char* const* argv) {
  WeightdCommand command;
  CLI::App app("weightd: keeps packs' weights in memory and serves them to inferd", "weightd");
  app.set_config("--config", "", "TOML file with any of these options", false);
  app.allow_config_extras(false);
  app.set_version_flag("--version", SLUICE_VERSION);
  ServingOptions(&app, &command.options);
  StorageOptions(&app, &command.options);
  LifeOptions(&app, &command.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    command.exit_code = app.exit(error) == 0 ? 0 : kUsageExit;
    return command;
  }
  FillDefaults(&command.options);
  return command;
}

}  // namespace sluice
