// `sluice-lab`: experiments. Compares policies on a simulated device, usually in the virtual time of a cost
// table, and measures what compression costs. Running a model does not need it.

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "common/base/version.h"
#include "lab/compare.h"
#include "lab/quality.h"

namespace sluice::cli {
namespace {

int Main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::printf("sluice-lab %s\n", Version());
    return kExitOk;
  }
  // A closed pipe must be an error of write(): a signal would end the process and leave the daemons behind.
  std::signal(SIGPIPE, SIG_IGN);
  Interrupt interrupt;
  const CommandContext context{&interrupt, BinaryDir()};
  if (argc > 1 && std::string_view(argv[1]) == "quality") {
    return RunQuality(context, {argv + 2, argv + argc});
  }
  CompareOptions options;
  std::optional<std::string> format;
  bool json = false;
  ArgParser parser("sluice-lab",
                   "Compares presets, or the rows of a file, one after the other. `sluice-lab quality` "
                   "measures what compression and sparsity cost.");
  parser.Choice("-o,--output", {"md", "json"}, &format, "what is printed [md]")
      .Flag("--json", &json, "as -o json; --preset takes a list, A,B, or all [all]");
  options.Declare(&parser);
  if (const auto exit_code = parser.Parse({argv + 1, argv + argc})) {
    return *exit_code;
  }
  if (options.common.pack.empty() && options.rows.empty()) {
    return parser.UsageError("--pack or --rows is required");
  }
  json = json || format == "json";
  const absl::StatusOr<int> code = ComparePresets(context, options, json);
  return code.ok() ? *code : Fail("sluice-lab", code.status(), json);
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) { return sluice::cli::Main(argc, argv); }
