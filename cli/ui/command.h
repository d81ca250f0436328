// Shared parts of all sub-commands of `sluice`: their entry in the table, its context and its way to report.
//
// Each sub-command lives in a file of its own and is one function of type CommandFunction; main.cc has the
// table.
//
// Thread safety: commands run on the main thread; the functions here may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/ui/args.h"
#include "cli/ui/interrupt.h"
#include "cli/ui/json.h"

namespace sluice::cli {

struct CommandContext {
  Interrupt* interrupt;    // not owned
  std::string binary_dir;  // where `sluice` lies, and the daemons beside it
};

// The folder of the running program, "." if the kernel does not say.
std::string BinaryDir();

using CommandFunction = int (*)(const CommandContext& context, const std::vector<std::string>& args);

int RunPack(const CommandContext& context, const std::vector<std::string>& args);
int RunPull(const CommandContext& context, const std::vector<std::string>& args);
int RunPlan(const CommandContext& context, const std::vector<std::string>& args);
int RunPacks(const CommandContext& context, const std::vector<std::string>& args);
int RunInspect(const CommandContext& context, const std::vector<std::string>& args);
int RunVerify(const CommandContext& context, const std::vector<std::string>& args);
int RunSynth(const CommandContext& context, const std::vector<std::string>& args);
int RunTokenize(const CommandContext& context, const std::vector<std::string>& args);
int RunDetokenize(const CommandContext& context, const std::vector<std::string>& args);
int RunRun(const CommandContext& context, const std::vector<std::string>& args);
int RunServe(const CommandContext& context, const std::vector<std::string>& args);
int RunChat(const CommandContext& context, const std::vector<std::string>& args);
int RunLogits(const CommandContext& context, const std::vector<std::string>& args);
int RunPerplexity(const CommandContext& context, const std::vector<std::string>& args);
int RunQuality(const CommandContext& context, const std::vector<std::string>& args);
int RunCalibrate(const CommandContext& context, const std::vector<std::string>& args);
int RunBench(const CommandContext& context, const std::vector<std::string>& args);
int RunDoctor(const CommandContext& context, const std::vector<std::string>& args);
int RunTop(const CommandContext& context, const std::vector<std::string>& args);
int RunTune(const CommandContext& context, const std::vector<std::string>& args);
int RunPreset(const CommandContext& context, const std::vector<std::string>& args);
// Not for people: the process that keeps the daemons of a runtime directory (supervisor.h).
int RunSupervise(const CommandContext& context, const std::vector<std::string>& args);

// Reports `status` on stderr as "COMMAND: CODE: message" (`command` as typed: "sluice pack"), with `json`
// also as the one object on stdout: {"error": {"code", "message"}}. Returns kExitFailed.
int Fail(const std::string& command, const absl::Status& status, bool json);

// Prints `value` and a newline to stdout. kExitOk, or kExitFailed if stdout could not be written.
int PrintJson(const Json& value);

// Writes `text` to stdout and flushes. Status names stdout.
absl::Status WriteStdout(const std::string& text);

// The bytes of the file, as they are; at most 1 GiB. `path` "-" reads standard input to its end.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace sluice::cli
